"""Tools of seats that the service plays: only what its operator installed."""

from __future__ import annotations

import pytest

from backend.admission.bounds import tools_are_installed
from tests.backend.admission.packs import admit
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import Train

GAME = {"environment": {"id": "board/TicTacToe-v0"}, "steps": 1}


def job(*tools, **settings):
    return RLSpec(**GAME, agents={"x": Train(), "o": Train(tools=list(tools))}, **settings)


@pytest.mark.parametrize("tool", ["tinkergym.tools:PythonTool", "tinkergym_board.games:tictactoe"])
def test_accepts_the_sandbox_and_what_is_in_packs(tool):
    admit(tools_are_installed, job(tool), None)


@pytest.mark.parametrize(
    "tool",
    [
        "os:system",
        "tinkergym.tools.mcp:mcp_tools",
        "tinkergym.bridges.trl:x",
        {"tool": "tinkergym.tools:PythonTool", "arguments": {"site_packages": True}},
    ],
)
def test_rejects_everything_else_by_name(tool):
    with pytest.raises(InvalidRequestError) as caught:
        admit(tools_are_installed, job(tool), None)
    assert caught.value.field == "agents.o.tools"
    admit(tools_are_installed, job(tool, rollout="client"), None)
