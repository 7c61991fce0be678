"""One conversation, one token sequence: random ones from every container, for each family of templates.

With tools, calls, thoughts, images, weights and nulls, from a list, JSON lines, a JSON array, Parquet, Arrow,
a `datasets` folder and CSV. A row is either the same tokens from all of them, or refused by all.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from benchmarks.common import Figure, write_result
from benchmarks.template_families import families, template_bundle
from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.prepare import Columns, readable, record_of, row_reader
from tinkergym.datasets.rows import DataSource, folder_of, opened

CONVERSATIONS = 3000
_ROWS = 10
"""Conversations per file."""
_WORDS = (
    "sky",
    "Grüße 世界",
    "two\nlines",
    'a "quoted" word',
    "1, 2; 3",
    "<b>",
    "e\u0301 👩🏽\u200d🚀",
    "null",
    " x ",
)
_PARAMETERS = {
    "city": {"type": "string", "description": "Where."},
    "days": {"type": "integer"},
    "unit": {"type": ["string", "null"], "enum": ["C", "F", None]},
    "mode": {
        "oneOf": [
            {"type": "string", "const": "fast"},
            {"type": "string", "description": "Other."},
            {"type": "null"},
        ]
    },
}
_NULLABLE = ("name", "tool_calls", "tool_call_id", "weight", "reasoning_content")

Row = dict[str, Any]


def anchor() -> Row:
    """Return a row with every key in one order, which Arrow's columns then have."""
    call = _call("a0", {"city": "x", "days": 1, "unit": "C", "mode": "fast"})
    thought = {"role": "assistant", "content": "It is.", "reasoning_content": "Hm."}
    asked = {"role": "user", "content": "?", "name": "ann"}
    called = {"role": "assistant", "content": "", "tool_calls": [call], "weight": 1}
    result = {"role": "tool", "content": "dry", "tool_call_id": "a0"}
    return {"messages": [asked, called, result, thought], "tools": [_tool("look", _PARAMETERS)]}


def random_rows(rng: random.Random, count: int) -> list[Row]:
    """Return conversations; the first is the anchor."""
    return [anchor(), *(_talk(rng) for _ in range(count - 1))]


def with_images(rows: Sequence[Row], rng: random.Random) -> list[Row]:
    """Return the rows with every content as parts, some of them images, as bytes."""
    return [{**row, "messages": [_in_parts(one, rng) for one in row["messages"]]} for row in rows]


def _tool(name: str, parameters: Mapping[str, Any]) -> Row:
    schema = {"type": "object", "properties": dict(parameters), "required": list(parameters)[:1]}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": schema}}


def _call(identity: str, arguments: Mapping[str, Any]) -> Row:
    return {"id": identity, "type": "function", "function": {"name": "look", "arguments": dict(arguments)}}


def _text(rng: random.Random) -> str:
    return " ".join(rng.choices(_WORDS, k=rng.randint(1, 4)))


def _talk(rng: random.Random) -> Row:
    messages: list[Row] = [{"role": "system", "content": _text(rng)}] if rng.random() < 0.3 else []
    calls = rng.random() < 0.4
    offered = rng.sample(list(_PARAMETERS), rng.randint(1, len(_PARAMETERS)))
    required = next(name for name in _PARAMETERS if name in offered)
    for turn in range(rng.randint(1, 3)):
        messages.append({"role": "user", "content": _text(rng)})
        if calls and rng.random() < 0.6:
            given = {"city": _text(rng), "days": rng.choice([rng.randint(0, 9), 2.5])}
            given |= {"unit": rng.choice(["F", None]), "mode": rng.choice(["fast", None])}
            arguments = {
                name: value
                for name, value in given.items()
                if name in offered and (name == required or rng.random() < 0.6)
            }
            identity = f"call{turn:05}"
            messages.append({"role": "assistant", "content": "", "tool_calls": [_call(identity, arguments)]})
            messages.append({"role": "tool", "content": _text(rng), "tool_call_id": identity})
        answer: Row = {"role": "assistant", "content": _text(rng)}
        if rng.random() < 0.3:
            answer["reasoning_content"] = _text(rng)
        if rng.random() < 0.3:
            answer["weight"] = rng.randint(0, 1)
        messages.append(answer)
    for message in messages:
        for key in _NULLABLE:
            if key not in message and rng.random() < 0.1:
                message[key] = None
    row: Row = {"messages": messages}
    if calls:
        row["tools"] = [_tool("look", {name: _PARAMETERS[name] for name in _PARAMETERS if name in offered})]
    return row


def shown_by(renderer: Renderer, rows: Sequence[Row]) -> list[Row]:
    """Return the rows without what the template refuses as such: calls, thoughts, or a system prompt."""

    def takes(*messages: Row, **more: Any) -> bool:
        return not tokens_of([{"messages": list(messages), **more}], renderer)[0].startswith("refused")

    first = anchor()
    asked, called, result, thought = first["messages"]
    plain = {"role": "assistant", "content": "It is."}
    calls = takes(asked, called, result, plain, tools=first["tools"])
    thoughts = takes(asked, thought)
    prompts = takes({"role": "system", "content": "s"}, asked, plain)
    found = []
    for row in rows:
        messages = [
            message if thoughts else {**message, "reasoning_content": None}
            for message in row["messages"]
            if (prompts or message["role"] != "system")
            and (calls or (message["role"] != "tool" and not message.get("tool_calls")))
        ]
        found.append({**row, "messages": messages} if calls else {"messages": messages})
    return found


def _in_parts(message: Row, rng: random.Random) -> Row:
    parts: list[Row] = [{"type": "text", "text": message["content"]}]
    if message["role"] == "user" and rng.random() < 0.5:
        parts = [{"type": "image", "image": _png(rng.randrange(256))}, *parts]
    return {**message, "content": parts}


def _png(shade: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), shade, np.uint8)).save(out, "PNG")
    return out.getvalue()


def _as_json(row: Any) -> Any:
    """Return a row for JSON: images as data URIs."""
    if isinstance(row, Mapping):
        if isinstance(row.get("image"), bytes):
            data = base64.b64encode(row["image"]).decode()
            return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return {name: _as_json(value) for name, value in row.items()}
    return [_as_json(one) for one in row] if isinstance(row, list) else row


def containers(rows: list[Row], folder: Path) -> Iterator[tuple[str, DataSource]]:
    """Yield the same rows in every container; the names of files say nothing."""
    yield "list", rows
    plain = [_as_json(row) for row in rows]
    (folder / "a").write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in plain), "utf-8")
    yield "JSON lines", folder / "a"
    (folder / "b").write_text(json.dumps(plain, indent=2), "utf-8")
    yield "JSON array", folder / "b"
    with (folder / "c").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, ["messages", "tools"], restval="")
        table.writeheader()
        table.writerows({name: json.dumps(value) for name, value in row.items()} for row in plain)
    yield "CSV", folder / "c"
    arrow = pa.Table.from_pylist(rows)
    pq.write_table(arrow, folder / "d")
    yield "Parquet", folder / "d"
    with pa.ipc.new_file(str(folder / "e"), arrow.schema) as writer:
        writer.write_table(arrow)
    yield "Arrow", folder / "e"
    datasets.disable_progress_bars()
    datasets.Dataset(arrow).save_to_disk(str(folder / "f"))
    yield "datasets", folder / "f"


def tokens_of(source: DataSource, renderer: Renderer) -> list[str]:
    """Return each row's ids with the trained spans and the images, or why it is refused."""
    read = row_reader("sft", renderer, "all")
    rows = readable(opened(source)[1], "sft", columns=Columns(()), folder=folder_of(source))
    found = []
    for row in rows:
        one = record_of(row, read)
        shown = [(list(s.token_ids), s.trained, [i.sha256 for i in s.images]) for s in one.sequences]
        found.append(f"refused: {one.fault}" if one.fault else repr(shown))
    return found


def unequal(rows: list[Row], renderer: Renderer, seen: Counter[str]) -> list[str]:
    """Return the containers from which a row has other tokens than from the list; count the rows."""
    with tempfile.TemporaryDirectory() as folder:
        (_, own), *others = containers(rows, Path(folder))
        wanted = tokens_of(own, renderer)
        seen.update("refused" if one.startswith("refused") else "rendered" for one in wanted)
        return [
            f"{name}, row {number}: {one[:300]} instead of {other[:300]}"
            for name, source in others
            for number, (one, other) in enumerate(zip(tokens_of(source, renderer), wanted, strict=True))
            if one != other
        ]


def measure() -> list[Figure]:
    """Read all conversations in every family."""
    templates = [(name, text) for several in families().values() for name, text in several.items()]
    each = -(-CONVERSATIONS // len(templates) // _ROWS)
    seen: Counter[str] = Counter()
    wrong: list[str] = []
    for place, (name, text) in enumerate(templates):
        rng, renderer = random.Random(place), Renderer.from_bundle(template_bundle(name, text))
        own: Counter[str] = Counter()
        for _ in range(each):
            wrong += [
                f"{name}, {one}"
                for one in unequal(shown_by(renderer, random_rows(rng, _ROWS)), renderer, own)
            ]
        print(name, dict(own), len(wrong), flush=True)
        seen += own
    measured = f"{seen.total() - len(wrong)} of {seen.total()} ({seen['refused']} refused alike)"
    figure = Figure(
        what="conversations with the same tokens from 7 containers",
        asked="3,000",
        measured=measured,
        reached=not wrong,
    )
    details = {"rows": dict(seen), "templates": len(templates), "wrong": wrong[:10]}
    return write_result("data_containers", [figure], details)
