"""Other dataset layouts, converted to ours: ShareGPT, Alpaca, single answers with a label.

Independent of tokens. Rows in none of these layouts are left unchanged and refused later.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from tinkergym.datasets.conversations import RowFaultError
from tinkergym.datasets.rows import Row
from tinkergym.images.stored_images import image_file
from tinkergym.user_code.quoting import quoted

_SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
}
"""ShareGPT's roles, by the value of `from`."""

_ALPACA = frozenset({"instruction", "input", "output"})
_LABELED = frozenset({"prompt", "completion", "label"})


def without_columns(row: Any, ignore: Collection[str]) -> Any:
    """Return a row without the columns that the caller names."""
    if not ignore or not isinstance(row, Mapping):
        return row
    return {name: value for name, value in row.items() if name not in ignore}


def in_our_layout(row: Any) -> Any:
    """Convert a ShareGPT or Alpaca row to `messages`, or to `prompt` and `completion`.

    Raises:
        RowFaultError: It is in one of these layouts, but invalid.
    """
    if not isinstance(row, Mapping):
        return row
    if "conversations" in row:
        return _of_sharegpt(row)
    if {"instruction", "output"} <= row.keys() <= _ALPACA:
        parts = [row["instruction"], row.get("input") or ""]
        if not all(isinstance(part, str) for part in parts):
            raise RowFaultError("instruction: and input must be strings")
        return {"prompt": "\n\n".join(filter(None, parts)), "completion": row["output"]}
    return row


def _of_sharegpt(row: Mapping[str, Any]) -> dict[str, Any]:
    said = row["conversations"]
    if not isinstance(said, list | tuple):
        raise RowFaultError(f"conversations: must be a list, not {type(said).__name__}")
    messages = [_of_speaker(one, f"conversations[{place}]") for place, one in enumerate(said)]
    ours = {name: value for name, value in row.items() if name not in {"conversations", "system"}}
    if row.get("system"):
        messages = [{"role": "system", "content": row["system"]}, *messages]
    for name in ("chosen", "rejected"):
        if isinstance(ours.get(name), Mapping):
            ours[name] = _of_speaker(ours[name], name)["content"]
    return {**ours, "messages": messages}


def _of_speaker(one: Any, where: str) -> dict[str, Any]:
    if not isinstance(one, Mapping) or not {"from", "value"} <= one.keys():
        raise RowFaultError(f"{where}: must be an object with from and value")
    if not isinstance(one["from"], str) or one["from"] not in _SPEAKERS:
        known = ", ".join(_SPEAKERS)
        raise RowFaultError(f"{where}.from: must be one of {known}, not {quoted(one['from'], 60)!a}")
    return {"role": _SPEAKERS[one["from"]], "content": one["value"]}


def in_pairs(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows for preferences: single answers with a label (KTO's layout) are paired, others unchanged.

    An answer is paired with the next one to the same prompt that has the other label. An answer without a
    partner is an error, because a loss on pairs cannot use it.
    """
    waiting: dict[tuple[str, bool], deque[Row]] = defaultdict(deque)
    for row in rows:
        if row.fault or not isinstance(row.value, Mapping) or row.value.keys() != _LABELED:
            yield row
            continue
        label = row.value["label"]
        if not isinstance(label, bool):
            yield Row(row.where, None, f"label: must be true or false, not {label!r:.60}")
            continue
        try:
            prompt = json.dumps(row.value["prompt"], sort_keys=True, default=_image_hash)
        except (TypeError, ValueError, RecursionError) as error:
            yield Row(row.where, None, f"prompt: {error}")
            continue
        partners = waiting[prompt, not label]
        if not partners:
            waiting[prompt, label].append(row)
            continue
        good, bad = (row, partners.popleft()) if label else (partners.popleft(), row)
        pair = {
            "prompt": row.value["prompt"],
            "chosen": good.value["completion"],
            "rejected": bad.value["completion"],
        }
        yield Row(f"{good.where} and {bad.where}", pair)
    for (_, label), rest in waiting.items():
        for row in rest:
            other = "false" if label else "true"
            yield Row(
                row.where,
                None,
                f"label: no answer to the same prompt has the label {other}, but preference training needs "
                f"pairs; remove it, or train on the good answers with client.sft",
            )


def _image_hash(image: Any) -> str:
    # The bytes of a file are decoded and checked later.
    return hashlib.sha256(image).hexdigest() if isinstance(image, bytes) else image_file(image).sha256
