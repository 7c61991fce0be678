"""Reasoning: the part of a completion between `<think>` and `</think>`."""

from __future__ import annotations

from tinkergym.tool_calls.call import MOST_CALLS, THINKING
from tinkergym.tool_calls.syntax import find_any_call
from tinkergym.tool_calls.thoughts import thought_end


def without_reasoning(answer: str, *, opened: bool = False) -> str:
    """Return a completion without its reasoning. Reasoning that a limit cut off extends to the end.

    Tags that a call of a tool quotes are text.

    Args:
        answer: The policy's text.
        opened: Whether the prompt ended with `<think>`, so that the completion starts inside it.
    """
    if not opened and "think>" not in answer:
        return answer
    # An end without a start: the prompt, or a template's rewriting, opened it.
    end = thought_end(answer, find_any_call)
    if opened and end <= 0:
        return ""
    if end > 0 and (opened or answer.find(THINKING, 0, end) < 0):
        answer = answer[end:].lstrip()
    kept, position = [], 0
    while (start := _opening(answer, position)) >= 0:
        kept.append(answer[position:start])
        end = thought_end(answer[start:], find_any_call)
        if end < 0:
            return "".join(kept)
        position = start + end + len(answer[start + end :]) - len(answer[start + end :].lstrip())
    return "".join([*kept, answer[position:]])


def _opening(answer: str, position: int) -> int:
    """Return where reasoning begins from a position, outside of calls; -1 if nowhere."""
    start = answer.find(THINKING, position)
    for _ in range(MOST_CALLS):
        call = find_any_call(answer, position) if start >= 0 else None
        if call is None or call.start > start:
            break
        position = call.start + 1 if call.is_malformed else call.end
        start = answer.find(THINKING, position)
    return start
