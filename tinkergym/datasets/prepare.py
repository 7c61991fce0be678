"""Prepare datasets for upload: read, checked and rendered row by row, before anything is started.

Errors have line, field and reason; the first in full and a few more in brief.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as default
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.conversations import OverlongRowError, RowFaultError, comparison, conversation
from tinkergym.datasets.image_columns import with_images
from tinkergym.datasets.layouts import in_our_layout, in_pairs, without_columns
from tinkergym.datasets.marked_tokens import Answers, comparison_tokens, conversation_tokens, text_tokens
from tinkergym.datasets.markup import refuse_markup
from tinkergym.datasets.padding import without_padding
from tinkergym.datasets.row_variables import date_of, variables_of
from tinkergym.datasets.rows import DataSource, Row, folder_of, opened, source_name
from tinkergym.datasets.tool_calls import calls_as_text, refuse_beyond_json, tools_of
from tinkergym.errors import InvalidImageError, InvalidRequestError, TemplateError, UnsupportedPartError
from tinkergym.images.stored_images import ImageFile
from tinkergym.messages import Message
from tinkergym.schema.uploaded_data import DataChunk, DataKind, DataManifest, PromptNote, TokenSequence
from tinkergym.trajectory.content_parts import ImagePart

Overlong = Literal["refuse", "drop"]

CHUNK_TOKENS = 200_000
"""A chunk is closed at this many tokens: about a megabyte."""
_BYTES_PER_TOKEN = 5
"""As JSON."""
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
    container: str = ""
    """What held the rows, in words."""
    layouts: Mapping[str, int] = default(default_factory=dict)
    """How many rows had which layout."""

    @property
    def taken_as(self) -> str:
        """How the data was read, in words."""
        rows = ", ".join(f"{count} rows as {name}" for name, count in self.layouts.items())
        return f"{self.container}, {rows}"


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
        source: A file or folder, a list of rows, or a task source.
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
    read = row_reader(kind, renderer, answers)
    collected, dropped, since = ChunkCollector(kind, chunk_tokens), 0, 0
    faults: list[str] = []
    columns = Columns(ignore)
    container, given = opened(source, field=field)
    layouts: Counter[str] = Counter()
    for row in readable(given, kind, columns=columns, folder=folder_of(source)):
        since += bool(faults)
        if since > _MOST_READ_AFTER_A_FAULT:
            break
        if row.overlong and on_overlong == "drop":
            dropped += 1
            continue
        one = record_of(row, read)
        if one.longest > renderer.context_length:
            if on_overlong == "drop":
                dropped += 1
                continue
            faults.append(
                f"{row.where}: {_whole(row.value)}: {one.longest} tokens, but the model's context is "
                f"{renderer.context_length}; shorten it, or set on_overlong='drop'"
            )
        elif one.fault:
            faults.append(f"{row.where}: {one.fault}")
        elif not faults:
            layouts[row.layout] += 1
            collected.add(one.sequences)
            collected.images |= one.images
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
    return replace(collected.finished(dropped), container=container, layouts=dict(layouts))


def readable(given: Iterable[Row], kind: DataKind, *, columns: Columns, folder: Path) -> Iterator[Row]:
    """Yield rows in our layout, without null keys, and with their images.

    Args:
        given: The rows as they were written.
        kind: The kind of rows.
        columns: Those to skip.
        folder: The folder for relative paths of images.
    """

    def ours(row: Row) -> Row:
        row = columns.without(row)
        if row.fault:
            return row
        try:
            layout, value = in_our_layout(without_padding(row.value), kind)
            return replace(row, value=with_images(value, folder), layout=layout)
        except RowFaultError as error:
            return replace(row, value=None, fault=str(error))
        except RecursionError:
            return replace(row, value=None, fault="row: is nested too deeply")

    rows = map(ours, given)
    return in_pairs(rows) if kind == "preference" else rows


class ChunkCollector:
    """Collects records into chunks."""

    def __init__(self, kind: DataKind, chunk_tokens: int = CHUNK_TOKENS) -> None:
        """Begin with none; a chunk of several records has at most `chunk_tokens`."""
        self._kind: DataKind = kind
        self._chunk_tokens = chunk_tokens
        self._open: list[list[TokenSequence]] = []
        self._notes: list[PromptNote] = []
        self._open_tokens = 0
        self._names: list[str] = []
        self._bodies: dict[str, bytes] = {}
        self.records = self._tokens = self._trained = 0
        self.images: dict[str, ImageFile] = {}

    def add(self, record: list[TokenSequence], note: PromptNote | None = None) -> None:
        """Add a record; one of prompts has a note."""
        size = sum(len(sequence.token_ids) for sequence in record)
        if note is not None:
            size += len(note.model_dump_json()) // _BYTES_PER_TOKEN
        if self._open and self._open_tokens + size > self._chunk_tokens:
            self._close()
        self._open.append(record)
        if note is not None:
            self._notes.append(note)
        self._open_tokens += size
        self.records += 1
        self._tokens += size
        self._trained += sum(sequence.trained_tokens for sequence in record)

    def finished(self, dropped: int = 0) -> PreparedData:
        """Return what was collected."""
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
        chunk = DataChunk.model_construct(kind=self._kind, records=self._open, notes=self._notes)
        # Nearly all data has no images, so the field is omitted then.
        body = chunk.model_dump_json(exclude_defaults=True).encode()
        name = hashlib.sha256(body).hexdigest()
        self._names.append(name)
        self._bodies[name] = body
        self._open, self._notes, self._open_tokens = [], [], 0


class Columns:
    """Columns to skip, and whether they occurred."""

    def __init__(self, ignore: Sequence[str]) -> None:
        """Set the columns."""
        self._ignore, self._seen = frozenset(ignore), set[str]()

    def without(self, row: Row) -> Row:
        """Return a row without the columns."""
        if isinstance(row.value, Mapping):
            self._seen |= self._ignore & row.value.keys()
        return replace(row, value=without_columns(row.value, self._ignore))

    @property
    def unseen(self) -> str:
        """A column that no row had; empty if there is none."""
        return min(self._ignore - self._seen, default="")


_Rendered = tuple[list[TokenSequence], dict[str, ImageFile]]


def row_reader(kind: DataKind, renderer: Renderer, answers: Answers) -> Callable[[Any], _Rendered]:
    """Return what renders a row in our layout: its sequences, and its images by their hash."""
    settled = row_renderer(renderer)

    def read(given: Any) -> _Rendered:
        row, own = settled(given)
        refuse_markup(own, row)
        row = calls_as_text(own, row)
        if kind == "preference":
            prompt, chosen, rejected = comparison(row)
            return comparison_tokens(own, prompt, chosen, rejected), images_of(prompt)
        if isinstance(row, Mapping) and row.keys() == {"text"}:
            return [text_tokens(renderer, row["text"])], {}
        messages = conversation(row)
        return [conversation_tokens(own, messages, answers=answers)], images_of(messages)

    return read


def row_renderer(renderer: Renderer) -> Callable[[Any], tuple[Any, Renderer]]:
    """Return what takes a row apart: into what shows its tools, variables and date, and the rest."""

    @lru_cache(maxsize=_MOST_TOOL_SETS)
    def showing(written: str) -> Renderer:
        tools, variables, day = json.loads(written)
        # What the job sets comes last, and wins; every job has a date, so a row's own is the one meant.
        return renderer.with_tools(tools, {**variables, **renderer.template_variables}, day)

    def settled(given: Any) -> tuple[Any, Renderer]:
        row, tools = tools_of(given)
        row, variables = variables_of(row)
        row, day = date_of(row)
        refuse_beyond_json(variables, "template_variables")
        own = tools or variables or day
        return row, showing(json.dumps([tools, variables, day])) if own else renderer

    return settled


def images_of(messages: Sequence[Message]) -> dict[str, ImageFile]:
    """Return the images of messages, by their hash."""
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


@dataclass(frozen=True, slots=True)
class RenderedRow:
    """A row's sequences and images, or what is wrong with it."""

    sequences: list[TokenSequence] = default(default_factory=list)
    images: dict[str, ImageFile] = default(default_factory=dict)
    fault: str = ""
    longest: int = 0
    """Tokens of the longest sequence, also of one that is longer than any may be."""


def record_of(row: Row, read: Callable[[Any], _Rendered]) -> RenderedRow:
    """Render a row."""
    if row.fault:
        return RenderedRow(fault=row.fault)
    try:
        sequences, images = read(row.value)
    except OverlongRowError as error:
        return RenderedRow(fault=str(error), longest=error.tokens)
    except (RowFaultError, UnsupportedPartError, InvalidImageError) as error:
        return RenderedRow(fault=str(error))
    except TemplateError as error:
        return RenderedRow(fault=f"the model's chat template refuses it: {error.message}")
    except RecursionError:
        return RenderedRow(fault="row: is nested too deeply")
    return RenderedRow(sequences, images, longest=max(len(one.token_ids) for one in sequences))


def _refusal(name: str, faults: list[str], field: str) -> InvalidRequestError:
    first, *others = faults
    shown = others[: _MOST_FAULTS - 1]
    more = [f"{len(others) - len(shown)} more"] if len(others) > len(shown) else []
    also = f"also invalid: {'; '.join([*shown, *more])}" if others else ""
    return InvalidRequestError(f"{name}, {first}", hint=also, field=field)
