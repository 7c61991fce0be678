"""Jobs, their agents and their versions by name, and what renders their conversations."""

import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRequestError, NotFoundError

pytestmark = pytest.mark.service


@pytest.fixture(scope="module")
def trained(service):
    """Return a finished job whose template has a variable, with versions 0 to 2."""
    mood = "{{ mood }}{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    with tg.Client(service.url, service.api_key) as client:
        job = client.sft(
            [{"prompt": "a", "completion": "b"}],
            steps=2,
            checkpoint_every=1,
            chat_template=mood,
            template_variables={"mood": "glad"},
        )
        job.wait()
        yield job


@pytest.mark.parametrize(("suffix", "version"), [("", None), ("@latest", None), ("@1", 1), ("@step:2", 2)])
def test_finds_versions_of_a_job_by_name(chat, service, trained, suffix, version):
    reply = chat("SAY yes", model=f"{trained.id}{suffix}")
    assert reply.status_code == 200, reply.text
    (wanted,) = service.sampled[-1]
    assert (wanted.policy, wanted.policy_version) == (trained.id, version)
    assert reply.json()["model"] == f"{trained.id}{suffix}"


def test_renders_with_the_jobs_own_template_and_variables(chat, api, trained):
    reply = chat("SAY yes", model=trained.id, return_token_ids=True).json()
    echoed = api.post(
        "completions",
        json={"model": "nano", "prompt": reply["prompt_token_ids"], "echo": True, "max_tokens": 1},
    ).json()
    assert echoed["choices"][0]["text"].startswith("glad<|im_start|>SAY yes<|im_end|>")


@pytest.mark.parametrize("suffix", ["@7", "@best", "/black"])
def test_answers_versions_that_are_not_there_with_404(chat, trained, suffix):
    missing = chat(model=f"{trained.id}{suffix}")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


def test_lists_own_jobs_among_the_models(api, trained):
    names = [one["id"] for one in api.get("models").json()["data"]]
    assert trained.id in names
    assert api.get(f"models/{trained.id}@1").json()["id"] == f"{trained.id}@1"


def promoted(trained, version, **more):
    made = trained.promote(version, name="support", **more)
    return made.policy, made.canary


def test_serves_the_version_that_a_name_was_promoted_to(chat, api, service, trained):
    assert promoted(trained, 1) == (f"{trained.id}@1", "")
    for version in (1, 2):
        promoted(trained, version)
        reply = chat(model="support")
        assert (service.sampled[-1][0].policy, service.sampled[-1][0].policy_version) == (trained.id, version)
        assert reply.json()["model"] == "support"
    (listed,) = [one for one in api.get("models").json()["data"] if one["id"] == "support"]
    assert listed == api.get("models/support").json()
    assert (listed["description"], listed["max_model_len"]) == (f"{trained.id}@2", 512)
    with tg.Client(service.url, service.api_key) as client:
        assert client.policy("support").reference == f"{trained.id}@2"
        assert client.remove_name("support") == []
    assert chat(model="support").status_code == 404


def test_keeps_one_version_for_each_user_of_a_canary(chat, api, service, trained):
    promoted(trained, "step:1")
    assert promoted(trained, "latest", share=0.5) == (f"{trained.id}@1", f"{trained.id}@2")

    def version(**whose):
        api.headers["X-Request-Id"] = whose.pop("request_id", "")
        assert chat(model="support", **whose).status_code == 200
        return service.sampled[-1][0].policy_version

    first = [version(user=f"user-{number}") for number in range(12)]
    assert set(first) == {1, 2}
    assert [version(safety_identifier=f"user-{number}") for number in range(12)] == first
    assert [version(request_id=f"user-{number}") for number in range(12)] == first


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": "nano"}, "name"),
        ({"name": "job-1"}, "name"),
        ({"name": ""}, "name"),
        ({"name": "other", "share": 0.5}, "share"),
        ({"name": "other", "share": 1.5}, "share"),
        ({"name": "other", "version": 9}, "policy"),
        ({"name": "other", "version": "newest"}, "policy"),
    ],
)
def test_refuses_promotions_that_cannot_take_effect(trained, given, field):
    with pytest.raises((InvalidRequestError, NotFoundError)) as refused:
        trained.promote(given.pop("version", 1), **given)
    assert refused.value.field == field
