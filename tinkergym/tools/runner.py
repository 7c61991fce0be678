"""ToolRunner: runs the tool calls in an action, for one agent and one episode after another.

Independent of environments and of how results are shown. The policy is told about a failed call, which is
counted; the episode only fails if a tool's infrastructure fails.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
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


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of one call."""

    name: str
    text: str
    count: str
    """The metric that counts it."""
    is_failure: bool = False
    error: Exception | None = None
    """Ends the episode."""


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
        parallel_calls: int = 1,
    ) -> None:
        """Use the tools; `begin` starts an episode.

        Args:
            tools: The tools by name.
            syntax: The syntax of calls.
            max_calls: Maximum calls per episode; None sets no limit.
            timeout_seconds: Time limit of a function without its own.
            max_result_characters: Of a longer result only the beginning and the end are shown.
            parallel_calls: How many independent calls of one action run at the same time.
        """
        self.tools, self.syntax = dict(tools), syntax
        self._max_calls, self._timeout, self._most_characters = (
            max_calls,
            timeout_seconds,
            max_result_characters,
        )
        self._parallel = parallel_calls
        self._calls_left = max_calls

    def begin(self) -> None:
        """Start an episode with all calls left."""
        self._calls_left = self._max_calls

    def run(self, action: object) -> RanCalls | None:
        """Run the calls of an action; None if it has none. The results are in the order of the calls.

        Raises:
            EnvironmentInfrastructureError: The infrastructure of a tool failed.
        """
        calls = parse_calls(action, self.syntax) if isinstance(action, str) else []
        if not calls:
            return None
        counts = no_calls()
        results: list[tuple[str, str]] = []
        while len(results) < len(calls):
            for done in self._outcomes(self._next(calls[len(results) :])):
                if done.error is not None:
                    raise done.error
                counts[done.count] += 1
                if done.is_failure:
                    counts["tool_errors"] += 1
                if done.count == "tool_calls" and self._calls_left is not None:
                    self._calls_left -= 1
                results.append((done.name, self._cut(done.text)))
        return RanCalls(results, counts)

    def _next(self, calls: Sequence[ToolCall | MalformedCall]) -> Sequence[ToolCall | MalformedCall]:
        """Return the calls that run next, together: no more than are left, because any may be used up."""
        most = self._parallel if self._calls_left is None else min(self._parallel, self._calls_left)
        independent = list(takewhile(self._is_independent, calls[:most]))
        return independent or calls[:1]

    def _is_independent(self, call: ToolCall | MalformedCall) -> bool:
        tool = self.tools.get(call.name) if isinstance(call, ToolCall) else None
        return tool is None or tool.is_independent

    def _outcomes(self, calls: Sequence[ToolCall | MalformedCall]) -> list[_Outcome]:
        if len(calls) == 1:
            return [self._outcome(calls[0])]
        done: dict[int, _Outcome] = {}

        def work(place: int) -> None:
            done[place] = self._outcome(calls[place])

        threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(len(calls))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [done[place] for place in range(len(calls))]

    def _outcome(self, call: ToolCall | MalformedCall) -> _Outcome:
        if isinstance(call, MalformedCall):
            return _Outcome("", f"error: the call cannot be read: {call.problem}", "malformed_tool_calls")
        tool = self.tools.get(call.name)
        if tool is None:
            names = ", ".join(self.tools)
            text = f"error: there is no tool {call.name[:80]!r}; the tools are: {names}"
            return _Outcome("", text, "malformed_tool_calls")
        if self._calls_left == 0:
            text = f"error: all {self._max_calls} calls are used up; answer now, without a call"
            return _Outcome(tool.name, text, "refused_tool_calls")
        return self._called(tool, call.arguments)

    def _called(self, tool: Tool, arguments: Mapping[str, Any]) -> _Outcome:
        if self.syntax in ("xml", "native"):
            arguments = typed_arguments(arguments, tool.parameters)
        try:
            return _Outcome(tool.name, self._call(tool, arguments), "tool_calls")
        except ToolArgumentsError as error:
            return _Outcome(tool.name, f"error: {error}", "malformed_tool_calls")
        except (EnvironmentInfrastructureError, InvalidRewardError) as error:
            return _Outcome(tool.name, "", "tool_calls", error=error)
        # Third-party code, which may even call sys.exit: the policy has to handle its failure.
        except (Exception, SystemExit) as error:
            text = str(error) if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"
            return _Outcome(tool.name, f"error: {text}", "tool_calls", is_failure=True)

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
