"""Where a completion's reasoning ends: at the first `</think>` that no call of a tool quotes.

Pure; accepts any text without raising, in time proportional to its length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tinkergym.tool_calls.call import MOST_CALLS, THINKING, THOUGHT


@dataclass(frozen=True, slots=True)
class CallSpan:
    """Where a call is written."""

    start: int
    end: int
    """Of a malformed call, how far it was read."""
    is_malformed: bool


FindCall = Callable[[str, int], CallSpan | None]
"""Returns the first call from a position."""


def thought_end(text: str, find_call: FindCall) -> int:
    """Return where the reasoning at the start of a completion ends, after its closing tag.

    0 if there is none, and -1 if it is never closed. Without an opening tag, the prompt may have opened it.

    Args:
        text: The completion.
        find_call: Finds calls in the model's format.
    """
    if THOUGHT in text:
        end = _outside_calls(text, find_call, even_malformed=True)
        if end < 0 and text.lstrip().startswith(THINKING):
            # Reasoning may mention half a call.
            end = _outside_calls(text, find_call, even_malformed=False)
        if end >= 0:
            return end + len(THOUGHT)
    return -1 if text.lstrip().startswith(THINKING) else 0


def _outside_calls(text: str, find_call: FindCall, *, even_malformed: bool) -> int:
    """Return the first closing tag outside of calls; -1 if there is none."""
    position = 0
    end = text.find(THOUGHT)
    for _ in range(MOST_CALLS):
        call = find_call(text, position)
        if end < 0 or call is None or call.start > end:
            return end
        if even_malformed or not call.is_malformed:
            position = max(call.end, call.start + 1)
            end = text.find(THOUGHT, position)
        else:
            position = call.start + 1
    return end
