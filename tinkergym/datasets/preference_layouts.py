"""Layouts of preference rows, converted to ours: whole conversations, OpenAI's rows, marked texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from tinkergym.datasets.alpaca import asked_in, is_alpaca
from tinkergym.datasets.conversations import RowFaultError
from tinkergym.datasets.messages_of_others import is_marked_text, of_marked_text, of_sharegpt

_ABOUT = ("prompt_id", "score_chosen", "score_rejected")
"""Columns of ultrafeedback_binarized that say something about a pair; no loss uses them."""
_TAG = "kto_tag"
"""LLaMA-Factory's column for whether an answer is good."""
_OPENAI = frozenset({"input", "preferred_output", "non_preferred_output"})


def preference_in_our_layout(row: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the name of a row's layout, and the row with `prompt` or `messages`, `chosen` and `rejected`.

    Raises:
        RowFaultError: It is in a known layout, but invalid.
    """
    if row.keys() == _OPENAI:
        return "OpenAI preferences", _of_openai(row)
    if "instruction" in row or "conversations" in row:
        return _of_llama_factory(row)
    if "label" in row:
        return "labeled answers", row
    both = [row.get("chosen"), row.get("rejected")]
    if all(map(is_marked_text, both)):
        talks = [of_marked_text(str(text)) for text in both]
        return "hh-rlhf", _of_conversations(row, *talks)
    if all(isinstance(one, list | tuple) and len(one) > 1 for one in both):
        whole = {name: value for name, value in row.items() if name not in (*_ABOUT, "messages")}
        return "conversations in chosen and rejected", _of_conversations(whole, *map(list, both))  # type: ignore[arg-type]
    return ("prompt, chosen and rejected" if "chosen" in row else ""), row


def _of_llama_factory(row: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    if is_alpaca(row, "chosen", "rejected"):
        pair = {name: row[name] for name in ("chosen", "rejected")}
        return "Alpaca preferences", {"prompt": asked_in(row), **pair}
    if is_alpaca(row, "output", _TAG):
        return "tagged Alpaca", {"prompt": asked_in(row), "completion": row["output"], "label": row[_TAG]}
    if "conversations" not in row:
        return "", row
    if _TAG in row:
        return "tagged ShareGPT", _tagged(of_sharegpt(row))
    return "ShareGPT preferences", of_sharegpt(row)


def _tagged(row: Mapping[str, Any]) -> dict[str, Any]:
    messages = row["messages"]
    if not messages:
        raise RowFaultError("conversations: must not be empty")
    ours = {name: value for name, value in row.items() if name not in ("messages", _TAG)}
    return {**ours, "prompt": messages[:-1], "completion": messages[-1:], "label": row[_TAG]}


def _of_openai(row: Mapping[str, Any]) -> dict[str, Any]:
    given = row["input"]
    if not isinstance(given, Mapping) or "messages" not in given:
        raise RowFaultError("input: must be an object with messages")
    return {
        "messages": given["messages"],
        "chosen": row["preferred_output"],
        "rejected": row["non_preferred_output"],
        **{name: value for name, value in given.items() if name != "messages"},
    }


def _of_conversations(row: Mapping[str, Any], chosen: list[Any], rejected: list[Any]) -> dict[str, Any]:
    """Return a pair of conversations as their common beginning and two answers."""
    pairs = zip(chosen[:-1], rejected[:-1], strict=False)
    shared = [one for one, _ in takewhile(lambda both: both[0] == both[1], pairs)]
    if not len(shared) == len(chosen) - 1 == len(rejected) - 1:
        raise RowFaultError(
            f"rejected: differs from chosen in message {len(shared)}, before its last one, so these are not "
            f"two answers to one prompt"
        )
    if "prompt" in row and not _begins_with(shared, row["prompt"]):
        raise RowFaultError("prompt: is not the beginning of chosen and rejected")
    ours = {name: value for name, value in row.items() if name != "prompt"}
    return {**ours, "messages": shared, "chosen": chosen[-1:], "rejected": rejected[-1:]}


def _begins_with(messages: Sequence[Any], prompt: Any) -> bool:
    if isinstance(prompt, str):
        asked = [one.get("content") for one in messages if isinstance(one, Mapping)]
        return any(isinstance(text, str) and text.strip() == prompt.strip() for text in asked)
    return isinstance(prompt, list | tuple) and list(messages[: len(prompt)]) == list(prompt)
