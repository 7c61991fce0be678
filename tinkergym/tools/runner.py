"""ToolRunner: runs the tool calls in an action, for one agent and one episode after another.

Independent of environments and of how results are shown. The policy is told about a failed call, which is
counted; the episode only fails if a tool's infrastructure fails.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from tinkergym.errors import (
    EnvironmentInfrastructureError,
    InvalidRewardError,
    ToolArgumentsError,
    ToolError,
)
from tinkergym.tool_calls.call import MalformedCall, ToolCall
from tinkergym.tool_calls.syntax import Syntax, parse_calls, typed_arguments
from tinkergym.tools.definition import Tool

_COUNTS = ("tool_calls", "tool_errors", "malformed_tool_calls", "refused_tool_calls")


@dataclass(frozen=True, slots=True)
class RanCalls:
    """The results of an action's calls."""

    results: list[tuple[str, str]]
    """For each call the tool's name, if the tool exists, and the text for the policy."""
    counts: dict[str, float]


class ToolRunner:
    """The tools that one agent may call."""

    def __init__(
        self,
        tools: Mapping[str, Tool],
        syntax: Syntax,
        *,
        max_calls: int | None = None,
        timeout_seconds: float | None = None,
        max_result_characters: int = 10_000,
    ) -> None:
        """Use the tools; `begin` starts an episode.

        Args:
            tools: The tools by name.
            syntax: The syntax of calls.
            max_calls: Maximum calls per episode; None sets no limit.
            timeout_seconds: Time limit of a function without its own.
            max_result_characters: Of a longer result only the beginning and the end are shown.
        """
        self.tools, self.syntax = dict(tools), syntax
        self._max_calls, self._timeout, self._most_characters = (
            max_calls,
            timeout_seconds,
            max_result_characters,
        )
        self._calls_left = max_calls

    def begin(self) -> None:
        """Start an episode with all calls left."""
        self._calls_left = self._max_calls

    def run(self, action: object) -> RanCalls | None:
        """Run the calls of an action in order; None if it has none.

        Raises:
            EnvironmentInfrastructureError: The infrastructure of a tool failed.
        """
        calls = parse_calls(action, self.syntax) if isinstance(action, str) else []
        if not calls:
            return None
        counts = no_calls()
        results = [self._result(call, counts) for call in calls]
        return RanCalls([(name, self._cut(text)) for name, text in results], counts)

    def _result(self, call: ToolCall | MalformedCall, counts: dict[str, float]) -> tuple[str, str]:
        if isinstance(call, MalformedCall):
            counts["malformed_tool_calls"] += 1
            return "", f"error: the call cannot be read: {call.problem}"
        tool = self.tools.get(call.name)
        if tool is None:
            counts["malformed_tool_calls"] += 1
            return "", f"error: there is no tool {call.name[:80]!r}; the tools are: {', '.join(self.tools)}"
        if self._calls_left == 0:
            counts["refused_tool_calls"] += 1
            return tool.name, f"error: all {self._max_calls} calls are used up; answer now, without a call"
        arguments = call.arguments
        if self.syntax in ("xml", "native"):
            arguments = typed_arguments(arguments, tool.parameters)
        try:
            text = self._call(tool, arguments)
        except ToolArgumentsError as error:
            counts["malformed_tool_calls"] += 1
            return tool.name, f"error: {error}"
        except (EnvironmentInfrastructureError, InvalidRewardError):
            raise
        # Third-party code, which may even call sys.exit: the policy has to handle its failure.
        except (Exception, SystemExit) as error:
            counts["tool_errors"] += 1
            text = str(error) if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"
            text = f"error: {text}"
        counts["tool_calls"] += 1
        if self._calls_left is not None:
            self._calls_left -= 1
        return tool.name, text

    def _call(self, tool: Tool, arguments: Mapping[str, Any]) -> str:
        seconds = self._timeout if tool.timeout_seconds is None else tool.timeout_seconds
        if seconds is None or not tool.runs_beside:
            return tool.call(arguments)
        answers: SimpleQueue[str | BaseException] = SimpleQueue()

        def work() -> None:
            try:
                answers.put(tool.call(arguments))
            except BaseException as error:  # raised again in the environment's thread
                answers.put(error)

        threading.Thread(target=work, name=f"tool {tool.name}", daemon=True).start()
        try:
            answer = answers.get(timeout=seconds)
        except Empty:
            raise ToolError(f"{tool.name} did not return within {seconds:g} s") from None
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _cut(self, text: str) -> str:
        text = text.encode("utf-8", "replace").decode()  # a tool may return lone surrogates
        left_out = len(text) - self._most_characters
        if left_out <= 0:
            return text
        half = self._most_characters // 2
        return f"{text[:half]}\n... {left_out} characters left out ...\n{text[-half:]}"


def no_calls() -> dict[str, float]:
    """Return the counts of an action without a call."""
    return dict.fromkeys(_COUNTS, 0.0)
