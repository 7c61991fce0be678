import gymnasium as gym
import pytest

from tinkergym.errors import InvalidToolError
from tinkergym.tools.collection import by_name, methods_of, named_tools
from tinkergym.tools.definition import tool


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Shop(gym.Env):
    @tool
    def buy(self, what: str) -> str:
        """Buy something."""
        return f"bought {what}"


class Till(gym.Wrapper):
    @tool
    def pay(self) -> str:
        """Pay."""
        return "paid"


def test_makes_tools_of_methods_of_environment_and_its_wrappers():
    assert sorted(by_name(methods_of(Till(Shop())))) == ["buy", "pay"]
    assert methods_of(gym.Wrapper(gym.Env())) == []


def test_names_tools_and_closes_only_what_was_made_here():
    tools, made = named_tools([add, f"{__name__}:add"])
    assert [one.name for one in tools] == ["add", "add"]
    assert made == []


@pytest.mark.parametrize("tools", [[], [add, add]])
def test_requires_names_that_exist_and_differ(tools):
    with pytest.raises(InvalidToolError) as refused:
        by_name(tools)
    assert refused.value.field == "tools"


@pytest.mark.parametrize("source", [3, "no.such:thing", "no_colon", {"wall_seconds": 2}])
def test_rejects_what_is_no_tool(source):
    with pytest.raises(InvalidToolError):
        named_tools([source])
