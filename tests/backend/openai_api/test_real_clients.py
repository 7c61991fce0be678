"""Real clients through their ordinary calls: `make test-all PARTS=clients` installs them.

`make test` has none of them; the other tests of this folder are its small counterpart.
"""

import os
import subprocess
from pathlib import Path

import pytest

import tinkergym as tg
from tests.tinkergym.datasets.test_layouts import CALLING

PYTHON = os.environ.get("TINKERGYM_CLIENTS_PYTHON", "")
pytestmark = [
    pytest.mark.service,
    pytest.mark.skipif(not PYTHON, reason="the clients are not installed: make test-all PARTS=clients"),
]

CHECKS = {"official": 21, "litellm": 4, "agents": 6, "langchain": 3}
"""What each program checks."""


@pytest.fixture(scope="module")
def with_tools(service):
    """Return the id of a job whose template shows tools."""
    with tg.Client(service.url, service.api_key) as client:
        job = client.sft(
            [{"prompt": "a", "completion": "b"}], steps=1, checkpoint_every=1, chat_template=CALLING
        )
        job.wait()
        return job.id


@pytest.mark.parametrize("name", CHECKS)
def test_serves_real_clients(service, with_tools, name, tmp_path):
    environment = {
        **os.environ,
        "OPENAI_BASE_URL": f"{service.url}/openai/v1",
        "OPENAI_API_KEY": service.api_key,
        "TOOLS_MODEL": with_tools,
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
