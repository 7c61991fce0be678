"""A job's own chat template: from text, file or name, through play, data and acting."""

from __future__ import annotations

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


class Echo(tg.SingleTurnEnv):
    def ask(self, options):
        return "Say ok."

    def score(self, answer):
        return float(answer == "ok")


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
