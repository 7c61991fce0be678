"""Reasoning: the part of a completion between `<think>` and `</think>`."""

from __future__ import annotations

import re

_BLOCK = re.compile(r"<think>.*?(?:</think>\s*|\Z)", re.DOTALL)
_END = re.compile(r"</think>\s*")


def without_reasoning(answer: str, *, opened: bool = False) -> str:
    """Return a completion without its reasoning. Reasoning that a limit cut off extends to the end.

    Args:
        answer: The policy's text.
        opened: Whether the prompt ended with `<think>`, so that the completion starts inside it.
    """
    end, start = _END.search(answer), answer.find("<think>")
    if end is None and opened:
        return ""
    # An end without a start: the prompt, or a template's rewriting, opened it.
    if end is not None and (opened or start < 0 or end.start() < start):
        answer = answer[end.end() :]
    return _BLOCK.sub("", answer) if "<think>" in answer else answer
