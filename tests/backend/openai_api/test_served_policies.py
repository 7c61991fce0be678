"""Jobs, their agents and their versions by name, and what renders their conversations."""

import pytest

import tinkergym as tg

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
        return job


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
