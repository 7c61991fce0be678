"""Rows that are already written in the model's own chat markup: as text they would be spelled out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.conversations import RowFaultError


def refuse_markup(renderer: Renderer, row: Any) -> None:
    """Refuse a text with the template's special tokens, and a prompt that is a whole conversation in them.

    A question that only mentions such a token is not refused: it is shown in ordinary tokens, as in an
    observation.

    Raises:
        RowFaultError: The row is such a text or prompt. The message names the first token.
    """
    if not isinstance(row, Mapping) or not renderer.marks:
        return
    text = row.get("text")
    if isinstance(text, str) and (mark := _first(renderer, text)):
        raise RowFaultError(_reason("text", mark))
    for name in ("prompt", "completion", "chosen", "rejected"):
        asked = row.get(name)
        if isinstance(asked, str) and (mark := _first(renderer, asked)) and asked.lstrip().startswith(mark):
            raise RowFaultError(_reason(name, mark))


def _first(renderer: Renderer, text: str) -> str:
    found = [(place, mark) for mark in renderer.marks if (place := text.find(mark)) >= 0]
    return min(found, default=(0, ""))[1]


def _reason(field: str, mark: str) -> str:
    return (
        f"{field}: is already written in the model's chat markup ({mark!a}), which would be trained as "
        f"characters; give the conversation as messages, and the template writes its special tokens"
    )
