"""Tools at a game's table: an agent may call some before it moves, invisibly to other agents.

A policy that was trained with them has them wherever it acts, in an environment with one agent too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any, cast

import gymnasium as gym

from tinkergym.agent.coordinator import Standing
from tinkergym.errors import InvalidToolError
from tinkergym.rollout.environment_host import AnyEnv, system_prompt_of
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.seat_tools import SeatTools
from tinkergym.tool_calls.syntax import render_result
from tinkergym.tools.collection import by_name, named_tools
from tinkergym.tools.definition import Tool, named
from tinkergym.tools.prompt import describe_tools
from tinkergym.tools.runner import ToolRunner

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
            tools,
            settings.syntax,
            max_calls=settings.max_calls,
            timeout_seconds=settings.timeout_seconds,
            parallel_calls=settings.parallel_calls,
        )
        self._offer = describe_tools(list(tools.values()), settings.syntax, max_calls=settings.max_calls)

    def prompt(self, own: str | None) -> str:
        """Return the game's own system prompt, followed by the description of the tools."""
        return f"{own}\n\n{self._offer}" if own else self._offer

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


def with_offer(own: str | None, settings: SeatTools | None) -> str | None:
    """Return a game's own system prompt with the description of an agent's tools, if it has any.

    Raises:
        InvalidToolError: A tool is not installed here.
    """
    if settings is None:
        return own
    with closing(SeatToolbox(settings)) as toolbox:
        return toolbox.prompt(own)


def with_seat_tools(
    make_env: Callable[[EnvironmentRef], AnyEnv], settings: SeatTools
) -> Callable[[EnvironmentRef], AnyEnv]:
    """Return a function that makes environments with one agent, who has the tools of a game's agent."""
    # Not a nested function: it must be picklable for environments in their own processes.
    return partial(_made_with_tools, make_env, settings)


def _made_with_tools(
    make_env: Callable[[EnvironmentRef], AnyEnv], settings: SeatTools, ref: EnvironmentRef
) -> AnyEnv:
    return ToolSeat(make_env(ref), settings)


class ToolSeat(gym.Wrapper[Any, Any, Any, Any]):
    """An environment with one agent who has the tools of a game's agent, and sees them as at a table."""

    def __init__(self, env: AnyEnv, settings: SeatTools) -> None:
        """Find the tools.

        Raises:
            InvalidToolError: A tool is not installed here.
        """
        super().__init__(env)
        self._toolbox = SeatToolbox(settings)
        self.metadata = {**env.metadata, "system_prompt": self._toolbox.prompt(system_prompt_of(env))}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode with all calls left."""
        self._toolbox.begin()
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Run the calls of an action, or pass it on."""
        standing = self._toolbox.called("", action)
        if standing is None:
            return self.env.step(action)
        return standing.observation, 0.0, False, False, cast("dict[str, Any]", standing.info)

    def close(self) -> None:
        """Close the environment, and the tools."""
        self._toolbox.close()
        super().close()
