"""Sessions of programs elsewhere: opened with the tenant's key, then used with their own."""

from base64 import b64encode
from io import BytesIO

import httpx
import pytest
from PIL import Image

import tinkergym as tg
from backend.openai_api.program_sessions import ProgramSessions
from backend.settings.gateway_limits import GatewayLimits
from tinkergym.errors import AuthenticationError

pytestmark = pytest.mark.service


@pytest.fixture
def post(service):
    def post(url, key, body=None):
        headers = {"authorization": f"Bearer {key}"}
        return httpx.post(url, headers=headers, json=body, timeout=60, trust_env=False, verify=False)

    return post


def test_plays_an_episode_by_calls_and_a_posted_reward(service, post):
    small = tg.GRPO(group_size=2, groups_per_step=1)
    with tg.Client(service.url, api_key=service.api_key) as client:
        job = client.train_agent(None, model="nano", steps=1, algorithm=small)
        opened = [post(f"{service.url}/v1/jobs/{job.id}/sessions", service.api_key) for _ in range(2)]
        sessions = [one.json() for one in opened]
        for number, session in enumerate(sessions):
            body = {"model": "any", "messages": [{"role": "user", "content": "SAY hi"}]}
            url = f"{session['urls']['agent']}/chat/completions"
            assert post(url, session["key"], body).json()["choices"][0]["message"]["content"] == "hi"
            streamed = post(url, session["key"], body | {"stream": True}).text
            assert streamed.endswith("data: [DONE]\n\n") and streamed.count("content") >= 2
            foreign = post(url, sessions[number - 1]["key"], body)
            assert (foreign.status_code, foreign.json()["error"]["code"]) == (401, "invalid_api_key")
            assert post(session["reward_url"], session["key"], "much").status_code == 400
            assert post(session["reward_url"], session["key"], number).status_code == 200
        job.wait(warn=False)
        returns = [one.trajectory.episode_return for one in service.jobs.get(job.id).results]
        assert sorted(returns) == [0.0, 1.0]
        late = post(f"{service.url}/v1/jobs/{job.id}/sessions", service.api_key)
        assert (late.status_code, late.json()["error"]["code"]) == (409, "job_ended")


def test_opens_sessions_only_for_programs_and_own_keys(service, post):
    with tg.Client(service.url, api_key=service.api_key) as client:
        job = client.sft([{"prompt": "a", "completion": "b"}], steps=1)
    assert post(f"{service.url}/v1/jobs/{job.id}/sessions", service.api_key).status_code == 409
    assert post(f"{service.url}/v1/jobs/{job.id}/sessions", "tg-guess").status_code == 401


@pytest.fixture
def program(service):
    """Return a running job of an agent program."""
    with tg.Client(service.url, api_key=service.api_key) as client:
        job = client.train_agent(
            None, model="nano", steps=1, algorithm=tg.GRPO(group_size=2, groups_per_step=1)
        )
        yield job
        job.cancel()


@pytest.mark.parametrize("samples_with_limit", [True, False])
def test_counts_the_tokens_of_a_session_for_its_own_key(service, post, program, samples_with_limit):
    limited = service.limited_key(tokens_per_minute=5)
    body = {"model": "nano", "messages": [{"role": "user", "content": "SAY hi"}]}
    keys = [service.api_key, limited] if samples_with_limit else [limited, service.api_key]
    opened = [post(f"{service.url}/v1/jobs/{program.id}/sessions", key) for key in keys]
    session = opened[-1].json()
    sampled = post(f"{session['urls']['agent']}/chat/completions", session["key"], body)
    assert sampled.status_code == 200
    later = post(f"{service.url}/openai/v1/chat/completions", limited, body)
    assert later.status_code == (429 if samples_with_limit else 200)


def test_opens_no_session_by_the_worker_of_another_key(service, program):
    sessions = ProgramSessions()
    try:
        assert sessions.next(program.id, "local", service.url, service.api_key, 30)
        with pytest.raises(AuthenticationError):
            sessions.next(program.id, "local", service.url, "tg-revoked", 1)
        assert sessions.next(program.id, "local", service.url, service.api_key, 30)
    finally:
        sessions.close()


def test_refuses_session_call_of_too_many_images_before_decoding(service, post, program):
    session = post(f"{service.url}/v1/jobs/{program.id}/sessions", service.api_key).json()
    url = f"{session['urls']['agent']}/chat/completions"
    file = BytesIO()
    Image.new("RGB", (1, 1)).save(file, "PNG")
    image = b64encode(file.getvalue()).decode()

    def refusal(*images):
        shown = [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{one}"}} for one in images
        ]
        refused = post(
            url, session["key"], {"model": "nano", "messages": [{"role": "user", "content": shown}]}
        )
        return refused.json()["error"]["param"]

    # Only the check in the child process finds the last one invalid, and it is not asked.
    most = GatewayLimits().prompt_images
    assert refusal(*[image] * most, "aW1n") == "messages"
    assert refusal("aW1n") != "messages"


def test_refuses_session_call_of_too_many_values(service, post, program):
    session = post(f"{service.url}/v1/jobs/{program.id}/sessions", service.api_key).json()
    body = {"model": "nano", "messages": [[]] * 1_200_000}
    refused = post(f"{session['urls']['agent']}/chat/completions", session["key"], body)
    assert refused.status_code == 413
