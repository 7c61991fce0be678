"""Tools at a game's table: an agent may call some before it moves, invisibly to other agents."""

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
            settings: The tools' settings.
            only_marked: Whether names may only refer to functions marked as tools, and to the sandbox: a
                service runs no other functions of the installed modules.

        Raises:
            InvalidToolError: A name does not refer to a tool, or two tools have the same name.
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
        """The description for the agent, added after the game's own system prompt."""

    def begin(self) -> None:
        """Start a game with all calls left."""
        self._runner.begin()

    def called(self, agent: str, action: Any) -> Standing | None:
        """Run the calls of an action and return the agent's state; None if the action is its move.

        Raises:
            EnvironmentInfrastructureError: The infrastructure of a tool failed.
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
        """Close the tools that were created for it."""
        for tool in self._made:
            tool.close()
