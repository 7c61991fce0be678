"""The programs of `examples/agent_programs`, as they are; two need `make test-all PARTS=clients`."""

import os
from pathlib import Path

import pytest

import tinkergym as tg
from backend.testing.scripted_service import ScriptedService
from tests.tinkergym.datasets.test_layouts import CALLING
from tinkergym.recording.command_program import CommandProgram

PROGRAMS = Path(__file__).parents[2] / "examples" / "agent_programs"
PYTHON = os.environ.get("TINKERGYM_CLIENTS_PYTHON", "")
with_clients = pytest.mark.skipif(
    not PYTHON, reason="the clients are not installed: make test-all PARTS=clients"
)
TASKS = [{"a": 3, "b": 4}]


def adds(prompt):
    """Call the calculator if there is one, and say what it returned."""
    last = prompt.split("<|im_start|>")[-2]
    if "add" not in prompt or last.startswith("tool"):
        return "it is 7 "
    return '<call>add {"a": 3, "b": 4}</call>'


EVERY = pytest.mark.parametrize(
    ("command", "turns"),
    [
        (["sh", str(PROGRAMS / "curl_agent.sh")], 1),
        pytest.param([PYTHON, str(PROGRAMS / "calculator.py")], 2, marks=with_clients),
        pytest.param([PYTHON, str(PROGRAMS / "agents_sdk.py")], 2, marks=with_clients),
    ],
    ids=["curl", "calculator", "agents_sdk"],
)
"""With the turns of an episode whose answers `adds` gives."""


@EVERY
def test_pays_programs_of_other_clients_and_languages(command, turns):
    with ScriptedService(adds) as service, tg.Client(service.url, service.api_key) as client:
        job = client.train_agent(
            CommandProgram(command),
            TASKS,
            model="nano",
            steps=1,
            chat_template=CALLING,
            algorithm=tg.GRPO(group_size=2, groups_per_step=1),
        )
        job.wait(warn=False)
        played = [one.trajectory for one in service.jobs.get(job.id).results]
    assert [(one.episode_return, len(one.turns), one.error) for one in played] == [(1.0, turns, "")] * 2
