"""Rows of Alpaca, with what LLaMA-Factory adds: a history, pairs of answers, and answers with a tag."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinkergym.datasets.conversations import RowFaultError

_ASKED = frozenset({"instruction", "input", "system", "history", "text"})
"""Keys of what is asked; `text` repeats the whole row."""


def is_alpaca(row: Mapping[str, Any], *answers: str) -> bool:
    """Whether a row is one of Alpaca with these keys for its answer."""
    return {"instruction", *answers} <= row.keys() <= _ASKED | {*answers}


def asked_in(row: Mapping[str, Any]) -> Any:
    """Return what a row of Alpaca asks: a text, or messages if it has a system prompt or a history.

    Raises:
        RowFaultError: It is invalid.
    """
    parts = [row["instruction"], row.get("input") or ""]
    if not all(isinstance(part, str) for part in parts):
        raise RowFaultError("instruction: and input must be strings")
    asked = "\n\n".join(filter(None, parts))
    history = row.get("history") or []
    if not row.get("system") and not history:
        return asked
    messages = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    if not isinstance(history, list | tuple):
        raise RowFaultError("history: must be a list of questions with their answers")
    for place, turn in enumerate(history):
        if not isinstance(turn, list | tuple) or len(turn) != 2:
            raise RowFaultError(f"history[{place}]: must be a list of a question and its answer")
        messages += [{"role": role, "content": text} for role, text in zip(_ROLES, turn, strict=True)]
    return [*messages, {"role": "user", "content": asked}]


_ROLES = ("user", "assistant")
