import os
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

import tinkergym as tg
from tinkergym.errors import (
    EnvironmentInfrastructureError,
    InvalidRequestError,
    ToolArgumentsError,
    ToolError,
)
from tinkergym.tool_calls.call import ToolCall
from tinkergym.tools import render_calls
from tinkergym.tools.mcp import mcp_tools
from tinkergym.wrappers import ToolCalling

pytestmark = pytest.mark.skipif(not find_spec("mcp"), reason="needs the package mcp")

COMMAND = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]


@pytest.fixture(scope="module")
def tools():
    with mcp_tools(COMMAND, env={"GIVEN": "yes"}) as tools:
        yield {tool.name: tool for tool in tools}


class Shop(tg.SingleTurnEnv):
    def ask(self, options):
        return "How much are two apples?"

    def score(self, answer):
        return float(answer == "10")


def test_offers_and_calls_the_servers_tools_in_environment(tools):
    env = ToolCalling(Shop(), list(tools.values()))
    assert "Return the price of some pieces" in env.metadata["system_prompt"]
    env.reset(seed=0)
    observation, *_ = env.step(render_calls([ToolCall("price", {"what": "apple", "pieces": 2})], "hermes"))
    assert "\n10\n" in observation
    assert env.step("10")[1] == 1.0


def test_calls_tools_from_any_thread(tools):
    found = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(tools["price"].call({"what": "x" * n})))
        for n in range(1, 6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("arguments", [{}, {"what": 3}, {"what": "x", "pieces": "many"}])
def test_checks_arguments_before_the_server_is_asked(tools, arguments):
    with pytest.raises(ToolArgumentsError):
        tools["price"].call(arguments)


def test_reports_tool_that_fails_there_to_the_policy(tools):
    with pytest.raises(ToolError):
        tools["fail"].call({})


def test_shows_server_only_the_variables_that_were_named(tools, monkeypatch):
    monkeypatch.setenv("SECRET", "key")
    with mcp_tools(COMMAND, only=["process"]) as others:
        assert [tool.name for tool in others] == ["process"]
        assert others[0].call({}).split()[1:] == ["None", "None"]
    assert tools["process"].call({}).split()[2] == "yes"


def test_tells_slow_calls_from_dead_servers():
    with mcp_tools(COMMAND, timeout_seconds=60) as found:
        tools = {tool.name: tool for tool in found}
        process = int(tools["process"].call({}).split()[0])
        found._connection._seconds = 0.2
        with pytest.raises(ToolError):
            tools["wait"].call({})
        found._connection._seconds = 60
        with pytest.raises(EnvironmentInfrastructureError):
            tools["die"].call({})
        with pytest.raises(EnvironmentInfrastructureError):
            tools["price"].call({"what": "x"})
    found.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


def test_ends_server_when_environment_that_named_its_tools_closes():
    env = ToolCalling(Shop(), [{"tool": "tinkergym.tools.mcp:mcp_tools", "command": COMMAND}])
    process = int(env.tools["process"].call({}).split()[0])
    env.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["/nowhere/server"], "did not start"),
        ([sys.executable, "-c", "import sys; sys.exit('no license')"], "no license"),
    ],
)
def test_says_why_a_server_does_not_start(command, said):
    with pytest.raises(EnvironmentInfrastructureError, match=said):
        mcp_tools(command, timeout_seconds=60)


def test_gives_up_server_that_says_nothing():
    with pytest.raises(EnvironmentInfrastructureError):
        mcp_tools([sys.executable, "-c", "import sys; sys.stdin.read()"], timeout_seconds=0.5)


@pytest.mark.parametrize("command", [[], [3]])
def test_rejects_command_that_is_none(command):
    with pytest.raises(InvalidRequestError) as caught:
        mcp_tools(command)
    assert caught.value.field == "command"


def test_rejects_tool_that_the_server_does_not_have():
    with pytest.raises(InvalidRequestError) as caught:
        mcp_tools(COMMAND, only=["cost"])
    assert caught.value.field == "only"
