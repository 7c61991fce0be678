"""A job's own chat template: from text, file or name, through play, data and acting."""

from __future__ import annotations

from datetime import date

import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.chat_templates import PLAIN
from tinkergym.tasks import SequenceTasks

SMALL = tg.GRPO(group_size=2, groups_per_step=2)
SHOUTING = (
    "{% for m in messages %}<|im_start|>{{ m.role | upper }}|{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>ASSISTANT|{% endif %}"
)


DATED = "{{ strftime_now('%d %b %Y') }}|{{ effort | default('medium') }}|" + SHOUTING


class Echo(tg.SingleTurnEnv):
    def ask(self, options):
        return "Say ok."

    def score(self, answer):
        return float(answer == "ok")


class Brief(Echo):
    template_variables = {"effort": "low"}  # noqa: RUF012 - as its users write it


def first_prompt(service, client, job):
    segment = service.jobs.get(job.id).history[0][0].trajectory.segments[0]
    return job.policy().renderer.decode(
        [token for token, sampled in zip(segment.token_ids, segment.loss_mask, strict=True) if not sampled]
    )


def test_renders_episodes_and_answers_by_the_jobs_own_template(service, client, tmp_path):
    file = tmp_path / "shouting.jinja"
    file.write_text(SHOUTING)
    job = client.train(Echo, steps=1, algorithm=SMALL, chat_template=file)
    job.wait()
    assert job.spec.chat_template == SHOUTING
    assert first_prompt(service, client, job) == "<|im_start|>USER|Say ok.<|im_end|><|im_start|>ASSISTANT|"
    assert client.policy(job.id).act("Say ok.") == "ok"


def test_accepts_named_template_for_a_model_that_has_none(client):
    job = client.train(Echo, steps=1, algorithm=SMALL, chat_template="plain")
    assert job.spec.chat_template == PLAIN
    job.wait()
    prompt = client.policy("nano", chat_template="plain").renderer.start([{"role": "user", "content": "hi"}])
    assert job.policy().renderer.decode(prompt) == "user: hi\nassistant: "


def test_renders_data_by_the_template_of_its_job(service, client):
    rows = SequenceTasks([{"prompt": "a", "completion": "b"}] * 2)
    ids = {
        template: client.sft(rows, steps=1, chat_template=template).spec.data for template in ("", SHOUTING)
    }
    assert ids[""] != ids[SHOUTING]


@pytest.mark.parametrize("template", ["plane", "{{ unclosed", "no template at all"])
def test_rejects_what_is_no_template(client, template):
    with pytest.raises((InvalidRequestError, tg.errors.TemplateError)):
        client.train(Echo, steps=1, chat_template=template)
    assert client.jobs() == []


def test_keeps_template_of_the_training_for_its_policy(client):
    job = client.train(Echo, steps=1, algorithm=SMALL)
    job.wait()
    with pytest.raises(InvalidRequestError) as caught:
        client.policy(job.id, chat_template="plain")
    assert caught.value.field == "chat_template"


@pytest.mark.parametrize(("variables", "shown"), [({}, "low"), ({"effort": "high"}, "high")])
def test_prompts_with_variables_of_environment_unless_job_sets_them(service, client, variables, shown):
    job = client.train(
        Brief,
        steps=1,
        algorithm=SMALL,
        chat_template=DATED,
        template_variables=variables,
        template_date="2026-03-01",
    )
    job.wait()
    assert first_prompt(service, client, job).startswith(f"01 Mar 2026|{shown}|<|im_start|>USER")
    assert job.spec.template_sha256
    assert job.spec.environment_variables == {"effort": "low"}
    service.sampled.clear()
    job.policy().act("Say ok.")
    (asked,) = service.sampled[0]
    assert f"|{shown}|" in job.policy().renderer.decode(asked.prompt_ids)


def test_acts_with_variables_and_date_of_training_unless_asked_otherwise(client):
    given = {"chat_template": DATED, "template_variables": {"effort": "high"}, "template_date": "2026-03-01"}
    job = client.train(Echo, steps=1, algorithm=SMALL, **given)
    job.wait()

    def opening(policy):
        return policy.renderer.decode(policy.renderer.start([{"role": "user", "content": "hi"}])).split("<")[
            0
        ]

    assert opening(client.policy(job.id)) == opening(job.policy()) == "01 Mar 2026|high|"
    asked = client.policy(job.id, template_variables={"effort": "none"}, template_date="2027-01-31")
    assert opening(asked) == "31 Jan 2027|none|"
    assert client.policy("nano", **given).act("hi", template_variables={"effort": "low"}) == "ok"


def test_refuses_unknown_variables_and_those_within_an_episode(client):
    for start in (client.train, lambda _, **settings: client.create_policy(**settings)):
        with pytest.raises(tg.errors.TemplateError) as refused:
            start(Echo, **({"steps": 1} if start == client.train else {}), template_variables={"efort": 1})
        assert refused.value.field == "template_variables"
    policy = client.policy("nano", chat_template=DATED)
    with pytest.raises(tg.errors.TemplateError):
        policy.act("hi", template_variables={"efort": 1})
    chat = policy.chat()
    chat.act("hi")
    with pytest.raises(InvalidRequestError) as refused:
        chat.act("ho", template_variables={"effort": "low"})
    assert refused.value.field == "template_variables"


def test_fixes_the_date_of_data_at_submission(client):
    rows = SequenceTasks([{"prompt": "a", "completion": "b"}] * 2)
    jobs = [client.sft(rows, steps=1, chat_template=DATED, template_date=day) for day in ("", "2026-03-01")]
    assert [job.spec.template_date for job in jobs] == [date.today().isoformat(), "2026-03-01"]
    assert jobs[0].spec.data != jobs[1].spec.data
