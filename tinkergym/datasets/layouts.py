"""Other dataset layouts, converted to ours: those of OpenAI, TRL, ShareGPT, Alpaca, hh-rlhf and others.

Independent of tokens. Rows in none of these layouts are left unchanged and refused later.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from tinkergym.datasets.alpaca import asked_in, is_alpaca
from tinkergym.datasets.conversations import RowFaultError
from tinkergym.datasets.messages_of_others import in_our_roles, of_sharegpt, read_list
from tinkergym.datasets.preference_layouts import preference_in_our_layout
from tinkergym.datasets.rows import Row
from tinkergym.images.stored_images import image_file
from tinkergym.schema.uploaded_data import DataKind

_LABELED = frozenset({"prompt", "completion", "label"})
_INDEX = frozenset({"__index_level_0__", ""})
"""How `DataFrame.to_parquet` and `to_csv` call the column with the numbers of rows."""
_WITH_MESSAGES = ("messages", "prompt", "completion", "chosen", "rejected")


def without_columns(row: Any, ignore: Collection[str]) -> Any:
    """Return a row without the columns that the caller names, and without the index of pandas."""
    if not isinstance(row, Mapping) or not (ignore or _INDEX & row.keys()):
        return row
    return {name: value for name, value in row.items() if name not in ignore and name not in _INDEX}


def in_our_layout(row: Any, kind: DataKind = "sft") -> tuple[str, Any]:
    """Return the name of a row's layout, and the row with `messages`, or with `prompt` and answers.

    Raises:
        RowFaultError: It is in a known layout, but invalid.
    """
    if not isinstance(row, Mapping):
        return "", row
    if kind == "preference":
        name, row = preference_in_our_layout(row)
    else:
        name, row = _conversation(row)
    row = _without_request_settings(row)
    ours = {key: in_our_roles(value, key) if key in _WITH_MESSAGES else value for key, value in row.items()}
    return name, ours


def _conversation(row: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    if "conversations" in row:
        return "ShareGPT", of_sharegpt(row)
    if is_alpaca(row, "output"):
        return "Alpaca", {"prompt": asked_in(row), "completion": row["output"]}
    if row.keys() == {"text"}:
        return "text", row
    if "messages" in row:
        return "messages", {**row, "messages": read_list(row["messages"], "messages")}
    return ("prompt and completion" if "completion" in row else ""), row


def _without_request_settings(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row of OpenAI's fine-tuning files without what says how a request would be sent."""
    if "parallel_tool_calls" in row and not isinstance(row["parallel_tool_calls"], bool):
        raise RowFaultError("parallel_tool_calls: must be true or false")
    kept = {name: value for name, value in row.items() if name not in ("parallel_tool_calls", "functions")}
    if row.get("functions"):
        if row.get("tools"):
            raise RowFaultError("functions: cannot be combined with tools")
        functions = read_list(row["functions"], "functions")
        if not isinstance(functions, list | tuple):
            raise RowFaultError(f"functions: must be a list, not {type(functions).__name__}")
        kept["tools"] = [{"type": "function", "function": one} for one in functions]
    return kept


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
            asked = row.value["prompt"]
            asked = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
            prompt = json.dumps(asked, sort_keys=True, default=_image_hash)
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
        yield Row(f"{good.where} and {bad.where}", pair, layout=row.layout)
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
