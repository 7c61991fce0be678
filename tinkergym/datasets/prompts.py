"""Prompts from the rows of a dataset: what `prepare` trains on, up to the answer.

A row's answer, if it has one, is left out; the ids before it are those of training. A row that cannot be
rendered is a prompt with a fault, and the rows after it are unaffected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.conversations import ANSWERS, RowFaultError, question
from tinkergym.datasets.image_columns import with_images
from tinkergym.datasets.layouts import in_our_layout, without_columns
from tinkergym.datasets.marked_tokens import prompt_tokens
from tinkergym.datasets.markup import refuse_markup
from tinkergym.datasets.padding import without_padding
from tinkergym.datasets.prepare import Columns, images_of, row_renderer
from tinkergym.datasets.rows import DataSource, Row, folder_of, opened
from tinkergym.datasets.tool_calls import calls_as_text, tools_of
from tinkergym.errors import InvalidImageError, TemplateError, UnsupportedPartError
from tinkergym.images.stored_images import ImageFile
from tinkergym.messages import is_unicode
from tinkergym.trajectory.content_parts import ImageSpan

_COMPARED = frozenset({"chosen", "rejected", "preferred_output", "non_preferred_output", "kto_tag"})
"""Columns by which a row of preferences is known."""
_ASKED = frozenset(
    ("prompt", "messages", "conversations", "text", "instruction", "input", "system", "history", "tools")
) | frozenset(("functions", "images", "image", "template_variables", "chat_template_kwargs", "template_date"))
"""Columns that layouts ask with: they are read, also if they are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRow:
    """A row as a prompt, or what is wrong with it."""

    number: int
    """Counts from 0, in the order of the dataset."""
    where: str
    """`line 7`, or `task 6`."""
    token_ids: Sequence[int] = ()
    images: Sequence[ImageSpan] = ()
    files: Mapping[str, ImageFile] = field(default_factory=dict)
    """The images by hash. They can be uploaded while this row exists."""
    kept: Mapping[str, Any] = field(default_factory=dict)
    """Columns to copy to the results."""
    tools: Sequence[Mapping[str, Any]] = ()
    """The functions that the row offers."""
    renderer: Renderer | None = None
    """Reads the answer: it knows the row's tools."""
    fault: str = ""


def prompt_rows(
    source: DataSource,
    renderer: Renderer,
    *,
    ignore: Sequence[str] = (),
    keep: Sequence[str] = (),
    start: int = 0,
    field: str = "data",
) -> Iterator[PromptRow]:
    """Yield the rows of a dataset as prompts, in order.

    Args:
        source: A file or folder, a list of rows, or a task source; in any layout that training reads.
        renderer: The renderer of the policy.
        ignore: Columns to skip.
        keep: Columns that are copied to the results. What a layout does not ask with is skipped.
        start: The first row; those before it are not rendered.
        field: The name of the setting, for errors.

    Raises:
        InvalidRequestError: The data cannot be read.
    """
    columns, settled = Columns([*ignore, *(set(keep) - _ASKED)]), row_renderer(renderer)
    folder = folder_of(source)
    _, given = opened(source, field=field)
    for number, row in islice(enumerate(given), start, None):
        there = row.value if isinstance(row.value, Mapping) else {}
        try:
            kept = {name: as_json(there[name]) for name in keep if name in there}
        except RecursionError:
            yield PromptRow(number=number, where=row.where, fault="row: is nested too deeply")
            continue
        bare = PromptRow(number=number, where=row.where, kept=kept)
        if row.fault:
            yield replace(bare, fault=row.fault)
            continue
        try:
            yield _rendered(bare, columns.without(row), settled, folder)
        except (RowFaultError, UnsupportedPartError, InvalidImageError) as error:
            yield replace(bare, fault=str(error))
        except TemplateError as error:
            yield replace(bare, fault=f"the model's chat template refuses it: {error.message}")
        except RecursionError:
            yield replace(bare, fault="row: is nested too deeply")


def _rendered(
    bare: PromptRow, row: Row, settled: Callable[[Any], tuple[Any, Renderer]], folder: Path
) -> PromptRow:
    asked = without_columns(_in_our_layout(row), ANSWERS)
    value, own = settled(with_images(asked, folder))
    refuse_markup(own, value)
    if isinstance(value, Mapping) and value.keys() == {"text"}:
        return replace(bare, renderer=own, token_ids=_opened_text(own, value["text"]))
    messages = question(calls_as_text(own, _without_answer(value)))
    prompt = prompt_tokens(own, messages)
    files = images_of(messages)
    return replace(
        bare,
        tools=tools_of(asked)[1],
        renderer=own,
        token_ids=prompt.token_ids,
        images=prompt.images,
        files=files,
    )


def as_json(value: Any) -> Any:
    """Return a column's value as JSON: what JSON cannot hold as text, and NaN and infinities as null."""
    if isinstance(value, Mapping):
        return {_whole(str(name)): as_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, str):
        return _whole(value)
    return value if isinstance(value, bool | int | float | None) else _whole(str(value))


def _whole(text: str) -> str:
    """Write half characters as escapes: no UTF-8 file can hold them."""
    return text.encode("utf-8", "backslashreplace").decode()


def _in_our_layout(row: Row) -> Any:
    value = without_padding(row.value)
    if not isinstance(value, Mapping):
        return value
    if "instruction" in value and not value.keys() & {"output", "chosen", "rejected"}:
        value = {**value, "output": ""}
    compared = not _COMPARED.isdisjoint(value)
    return in_our_layout(value, "preference" if compared else "sft")[1]


def _without_answer(row: Any) -> Any:
    """Leave the last answer out before the template must write its calls or thoughts."""
    messages = row.get("messages") if isinstance(row, Mapping) else None
    if not isinstance(messages, list | tuple) or len(messages) < 2:
        return row
    last = messages[-1]
    answered = isinstance(last, Mapping) and last.get("role") == "assistant"
    return {**row, "messages": messages[:-1]} if answered else row


def _opened_text(renderer: Renderer, text: Any) -> list[int]:
    if not isinstance(text, str) or not text or not is_unicode(text):
        raise RowFaultError("text: must be a string of Unicode that is not empty")
    return renderer.document(text, ended=False)
