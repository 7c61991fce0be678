"""Dataset rows with their location, from whatever holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from tinkergym.tasks.source import TaskSource

DataSource = str | PathLike[str] | TaskSource | Sequence[Mapping[str, Any]]
"""A file or folder, a task source, or a list of rows."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row, or why it cannot be read."""

    where: str
    """`line 7`, or `task 6`."""
    value: Any
    fault: str = ""
    layout: str = ""
    """The name of its layout, once it is known."""
    overlong: bool = False
    """Whether the fault is its length."""


def source_name(source: DataSource) -> str:
    """Return the dataset's name for messages."""
    if isinstance(source, TaskSource):
        return source.name
    return Path(source).name if isinstance(source, str | PathLike) else f"the {type(source).__name__} of rows"
