"""Tools at a game's table: an agent may call some before it moves, and no other agent sees it."""

from __future__ import annotations

from typing import Any

from tinkergym.agent.coordinator import Standing
from tinkergym.errors import InvalidToolError
from tinkergym.schema.seat_tools import SeatTools
from tinkergym.tools.collection import by_name, named_tools
from tinkergym.tools.definition import Tool, named
from tinkergym.tools.prompt import describe_tools
from tinkergym.tools.runner import ToolRunner
from tinkergym.tools.syntax import render_result

SANDBOX = "tinkergym.tools:PythonTool"


class SeatToolbox:
    """The tools of one agent, for one game after another."""

    def __init__(self, settings: SeatTools, *, only_marked: bool = False) -> None:
        """Find the tools.

        Args:
            settings: Which.
            only_marked: Whether names may stand only for what is marked as a tool, and for the sandbox: a
                service runs no other functions of the modules that its operator installed.

        Raises:
            InvalidToolError: A name stands for no tool, or two have one name.
        """
        self.settings = settings
        for one in settings.tools if only_marked else ():
            if one.tool != SANDBOX and not isinstance(named(one.tool), Tool):
                raise InvalidToolError(f"{one.tool} is not marked with @tool", field="tools")
        given, self._made = named_tools(settings.sources)
        tools: dict[str, Tool] = by_name(given)
        self._runner = ToolRunner(
            tools, settings.syntax, max_calls=settings.max_calls, timeout_seconds=settings.timeout_seconds
        )
        self.offer = describe_tools(list(tools.values()), settings.syntax, max_calls=settings.max_calls)
        """What the agent is told of them, after the game's own system prompt."""

    def begin(self) -> None:
        """Start a game with all its calls left."""
        self._runner.begin()

    def called(self, agent: str, action: Any) -> Standing | None:
        """Run the calls of an action; returns how the agent stands then. None if the action is its move.

        Raises:
            EnvironmentInfrastructureError: What a tool runs on failed.
        """
        ran = self._runner.run(action)
        if ran is None:
            return None
        shown = "\n".join(render_result(name, text, self.settings.syntax) for name, text in ran.results)
        return Standing(
            agent=agent,
            observation={"text": shown},
            reward=0.0,
            terminated=False,
            truncated=False,
            info={"metrics": ran.counts},
        )

    def close(self) -> None:
        """Close the tools that were made for it."""
        for tool in self._made:
            tool.close()
