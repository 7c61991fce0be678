"""Real clients through their ordinary calls: `make test-all PARTS=clients` installs them.

`make test` has none of them; the other tests of this folder are its small counterpart.
"""

import json
import os
import subprocess
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

import tinkergym as tg
from tests.tinkergym.datasets.test_layouts import CALLING
from tinkergym.errors import ServiceUnavailableError

PYTHON = os.environ.get("TINKERGYM_CLIENTS_PYTHON", "")
pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(not PYTHON, reason="the clients are not installed: make test-all PARTS=clients"),
]

CHECKS = {"official": 26, "litellm": 7, "agents": 6, "langchain": 6}
"""What each program checks."""

SLOW_SEED = 7777
"""The model is loaded while a request with this seed waits."""


@pytest.fixture(scope="module")
def with_tools(service):
    """Return the id of a job whose template shows tools."""
    with tg.Client(service.url, service.api_key) as client:
        job = client.sft(
            [{"prompt": "a", "completion": "b"}], steps=1, checkpoint_every=1, chat_template=CALLING
        )
        job.wait()
        return job.id


@pytest.fixture
def loaded_late(service):
    """Let a model be loaded for longer than a stream stays silent; a request is tried five times a second."""
    stream, tries = service.pool.stream, count(1)

    @asynccontextmanager
    async def late(pool, path, body):
        if json.loads(body)["requests"][0]["seed"] == SLOW_SEED and next(tries) % 30:
            raise ServiceUnavailableError("the model is not loaded")
        async with stream(pool, path, body) as answered:
            yield answered

    service.pool.stream = late
    yield
    del service.pool.stream


@pytest.mark.usefixtures("loaded_late")
@pytest.mark.parametrize("name", CHECKS)
def test_serves_real_clients(service, with_tools, name, tmp_path):
    environment = {
        **os.environ,
        "OPENAI_BASE_URL": f"{service.url}/openai/v1",
        "OPENAI_API_KEY": service.api_key,
        "TOOLS_MODEL": with_tools,
        "SLOW_SEED": str(SLOW_SEED),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "LANGSMITH_TRACING": "false",
        "NO_PROXY": "127.0.0.1",
    }
    program = Path(__file__).with_name("real_clients.py")
    ran = subprocess.run(
        [PYTHON, program, name],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stdout
    checks = [line for line in ran.stdout.splitlines() if line]
    assert len(checks) >= CHECKS[name], ran.stdout
