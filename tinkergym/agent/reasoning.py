"""Reasoning: the part of an answer between `<think>` and `</think>`."""

from __future__ import annotations

import re

_BLOCK = re.compile(r"<think>.*?(?:</think>\s*|\Z)", re.DOTALL)
_END = re.compile(r"</think>\s*")


def without_reasoning(answer: str, *, opened: bool = False) -> str:
    """Return an answer without its reasoning; reasoning that a limit cut off reaches to the end.

    Args:
        answer: The policy's text.
        opened: The prompt ended with `<think>`, so the answer begins inside it.
    """
    end, start = _END.search(answer), answer.find("<think>")
    if end is None and opened:
        return ""
    # An end without a start: the prompt, or a template's rewriting, opened it.
    if end is not None and (opened or start < 0 or end.start() < start):
        answer = answer[end.end() :]
    return _BLOCK.sub("", answer) if "<think>" in answer else answer
