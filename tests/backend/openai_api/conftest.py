"""A service without a model, whose policies say what the last message tells them to."""

import re

import httpx
import pytest

from backend.engines.failures import failure, structure_refused
from backend.testing.scripted_service import ScriptedService


def say(prompt):
    """Return what the last `SAY ...` in a prompt asks for."""
    told = re.findall(r"SAY (.*?)<\|im_end\|>", prompt, re.DOTALL)
    return told[-1] if told else "ok"


@pytest.fixture(scope="session")
def service():
    with ScriptedService(say, context_length=512) as service:
        answers = service.pool.answers

        def without_structure(requests):
            """Refuse structured output, as most engines do, but not of a job's policy."""
            refusals = {
                one.request_id: None if one.policy.startswith("job-") else structure_refused(one, "scripted")
                for one in requests
            }
            found = answers([one for one in requests if refusals[one.request_id] is None])
            return found + [failure(one, error) for one in requests if (error := refusals[one.request_id])]

        service.pool.answers = without_structure
        yield service


@pytest.fixture
def api(service):
    """Return a client of the service's OpenAI API."""
    headers = {"Authorization": f"Bearer {service.api_key}"}
    with httpx.Client(
        base_url=f"{service.url}/openai/v1/", headers=headers, timeout=120, trust_env=False, verify=False
    ) as api:
        yield api


@pytest.fixture
def chat(api):
    """Return a function that asks a policy to say something."""

    def chat(text="SAY ok", **more):
        messages = [{"role": "user", "content": text}]
        return api.post("chat/completions", json={"model": "nano", "messages": messages, **more})

    return chat
