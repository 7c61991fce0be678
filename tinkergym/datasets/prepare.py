"""Prepare datasets for upload: read, checked and rendered row by row, before anything is started.

Errors have line, field and reason; the first in full and a few more in brief.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.conversations import RowFaultError, comparison, conversation
from tinkergym.datasets.layouts import in_our_layout, in_pairs, without_columns
from tinkergym.datasets.marked_tokens import Answers, comparison_tokens, conversation_tokens, text_tokens
from tinkergym.datasets.rows import DataSource, Row, rows, source_name
from tinkergym.datasets.tool_calls import calls_as_text, tools_of
from tinkergym.errors import InvalidImageError, InvalidRequestError, TemplateError, UnsupportedPartError
from tinkergym.images.stored_images import ImageFile
from tinkergym.messages import Message
from tinkergym.schema.data import DataChunk, DataKind, DataManifest, TokenSequence
from tinkergym.trajectory.content_parts import ImagePart

Overlong = Literal["refuse", "drop"]

CHUNK_TOKENS = 200_000
"""A chunk is closed at this many tokens: about a megabyte."""
_MOST_FAULTS = 5
_MOST_TOOL_SETS = 256
"""The number of cached renderers for different tools."""
_MOST_READ_AFTER_A_FAULT = 1000
"""Stop after this many invalid rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedData:
    """Rendered data in chunks: each request body under its hash."""

    manifest: DataManifest
    bodies: dict[str, bytes]
    records: int
    dropped: int
    """Rows dropped because they are longer than the model's context."""
    tokens: int
    trained_tokens: int
    images: dict[str, ImageFile]
    """Images by hash; to be sent before the chunks."""


def prepare(
    source: DataSource,
    renderer: Renderer,
    *,
    kind: DataKind,
    answers: Answers = "all",
    on_overlong: Overlong = "refuse",
    ignore: Sequence[str] = (),
    field: str = "data",
    chunk_tokens: int = CHUNK_TOKENS,
) -> PreparedData:
    """Read, check and render data.

    Args:
        source: A `.jsonl` file or a task source.
        renderer: The renderer of the trained model.
        kind: The kind of rows: conversations, or comparisons.
        answers: Which answers of a conversation are trained on.
        on_overlong: How to handle a row that is longer than the model's context.
        ignore: Columns to skip; each must occur in some row.
        field: The name of the setting, for errors.
        chunk_tokens: The most tokens of a chunk of several records.

    Raises:
        InvalidRequestError: A row cannot be trained on, or there are none.
    """
    read = _reader(kind, renderer, answers)
    collected, dropped, since = _Collected(kind, chunk_tokens), 0, 0
    faults: list[str] = []
    columns = _Columns(ignore)
    given = map(columns.without, rows(source, field=field))
    for row in in_pairs(given) if kind == "preference" else given:
        since += bool(faults)
        if since > _MOST_READ_AFTER_A_FAULT:
            break
        record, images, fault = _record(row, read)
        longest = max((len(sequence.token_ids) for sequence in record), default=0)
        if longest > renderer.context_length:
            if on_overlong == "drop":
                dropped += 1
                continue
            fault = (
                f"{_whole(row.value)}: {longest} tokens, but the model's context is "
                f"{renderer.context_length}; shorten it, or set on_overlong='drop'"
            )
        if fault:
            faults.append(f"{row.where}: {fault}")
        elif not faults:
            collected.add(record)
            collected.images |= images
    if faults:
        raise _refusal(source_name(source), faults, field)
    if unseen := columns.unseen:
        raise InvalidRequestError(
            f"{source_name(source)}: no row has the column {unseen!r}", hint="leave it out", field="ignore"
        )
    if not collected.records:
        why = f"all of its {dropped} rows are longer than the model's context" if dropped else "has no rows"
        purpose = "train on" if field == "data" else "measure with"
        raise InvalidRequestError(
            f"{source_name(source)}: {why}", hint=f"there is nothing to {purpose}", field=field
        )
    return collected.finished(dropped)


class _Collected:
    """Collects records into chunks."""

    def __init__(self, kind: DataKind, chunk_tokens: int) -> None:
        self._kind: DataKind = kind
        self._chunk_tokens = chunk_tokens
        self._open: list[list[TokenSequence]] = []
        self._open_tokens = 0
        self._names: list[str] = []
        self._bodies: dict[str, bytes] = {}
        self.records = self._tokens = self._trained = 0
        self.images: dict[str, ImageFile] = {}

    def add(self, record: list[TokenSequence]) -> None:
        size = sum(len(sequence.token_ids) for sequence in record)
        if self._open and self._open_tokens + size > self._chunk_tokens:
            self._close()
        self._open.append(record)
        self._open_tokens += size
        self.records += 1
        self._tokens += size
        self._trained += sum(sequence.trained_tokens for sequence in record)

    def finished(self, dropped: int) -> PreparedData:
        self._close()
        return PreparedData(
            manifest=DataManifest(kind=self._kind, chunks=self._names),
            bodies=self._bodies,
            records=self.records,
            dropped=dropped,
            tokens=self._tokens,
            trained_tokens=self._trained,
            images=self.images,
        )

    def _close(self) -> None:
        chunk = DataChunk.model_construct(kind=self._kind, records=self._open)
        # Nearly all data has no images, so the field is omitted then.
        body = chunk.model_dump_json(exclude_defaults=True).encode()
        name = hashlib.sha256(body).hexdigest()
        self._names.append(name)
        self._bodies[name] = body
        self._open, self._open_tokens = [], 0


class _Columns:
    """Columns to skip, and whether they occurred."""

    def __init__(self, ignore: Sequence[str]) -> None:
        self._ignore, self._seen = frozenset(ignore), set[str]()

    def without(self, row: Row) -> Row:
        if isinstance(row.value, Mapping):
            self._seen |= self._ignore & row.value.keys()
        return replace(row, value=without_columns(row.value, self._ignore))

    @property
    def unseen(self) -> str:
        return min(self._ignore - self._seen, default="")


_Rendered = tuple[list[TokenSequence], dict[str, ImageFile]]


def _reader(kind: DataKind, renderer: Renderer, answers: Answers) -> Callable[[Any], _Rendered]:
    showing = lru_cache(maxsize=_MOST_TOOL_SETS)(lambda tools: renderer.with_tools(json.loads(tools)))

    def read(given: Any) -> _Rendered:
        row, tools = tools_of(in_our_layout(given))
        own = showing(json.dumps(tools)) if tools else renderer
        row = calls_as_text(own, row)
        if kind == "preference":
            prompt, chosen, rejected = comparison(row)
            return comparison_tokens(own, prompt, chosen, rejected), _images(prompt)
        if isinstance(row, Mapping) and row.keys() == {"text"}:
            return [text_tokens(renderer, row["text"])], {}
        messages = conversation(row)
        return [conversation_tokens(own, messages, answers=answers)], _images(messages)

    return read


def _images(messages: Sequence[Message]) -> dict[str, ImageFile]:
    files = [
        part.file
        for message in messages
        if not isinstance(message["content"], str)
        for part in message["content"]
        if isinstance(part, ImagePart)
    ]
    return {file.sha256: file for file in files if file is not None}


def _whole(row: Mapping[str, Any]) -> str:
    """Name the fields whose tokens form one sequence."""
    if "text" in row:
        return "text"
    if "messages" in row or "conversations" in row:
        return "messages with an answer" if "chosen" in row else "messages"
    return "prompt with an answer" if "chosen" in row else "prompt with completion"


def _record(
    row: Row, read: Callable[[Any], _Rendered]
) -> tuple[list[TokenSequence], dict[str, ImageFile], str]:
    """Return a row's sequences and images, or what is wrong with it."""
    if row.fault:
        return [], {}, row.fault
    try:
        return *read(row.value), ""
    except (RowFaultError, UnsupportedPartError, InvalidImageError) as error:
        return [], {}, str(error)
    except TemplateError as error:
        return [], {}, f"the model's chat template refuses it: {error.message}"
    except RecursionError:
        return [], {}, "row: is nested too deeply"


def _refusal(name: str, faults: list[str], field: str) -> InvalidRequestError:
    first, *others = faults
    shown = others[: _MOST_FAULTS - 1]
    more = [f"{len(others) - len(shown)} more"] if len(others) > len(shown) else []
    also = f"also invalid: {'; '.join([*shown, *more])}" if others else ""
    return InvalidRequestError(f"{name}, {first}", hint=also, field=field)
