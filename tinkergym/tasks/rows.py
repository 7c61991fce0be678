"""What tasks share that a program holds or makes: parts by name, copies, a fingerprint of the rows."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TypeVar, cast

from tinkergym.errors import InvalidRequestError
from tinkergym.tasks.fingerprint import rows_fingerprint
from tinkergym.tasks.source import Task, TaskSource, named_split, refuse_split

Part = TypeVar("Part")


class RowTasks(TaskSource):
    """Tasks without a file behind them."""

    _fingerprint = ""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the tasks as JSON, in hex; reads, or draws, them all."""
        if not self._fingerprint:
            self._fingerprint = rows_fingerprint(iter(self), self.name)
        return self._fingerprint

    def _part(self, given: Part | Mapping[str, Part], split: str | None, *, what: str) -> Part:
        """Return the part of a mapping that `split` names, or what is not divided as it is.

        Raises:
            InvalidRequestError: There is no such part; the error lists those that are there.
        """
        if not isinstance(given, Mapping):
            refuse_split(what, split)
            return given
        self.splits = tuple(given)
        self.split = named_split("the mapping", self.splits, split)
        return cast("Part", given[self.split])


def copied(task: object, index: int, name: str) -> Task:
    """Return a task as a dict of its own.

    Raises:
        InvalidRequestError: It is no mapping.
    """
    if not isinstance(task, Mapping):
        raise InvalidRequestError(
            f"task {index} of {name} is a {type(task).__name__}",
            hint='a task is a mapping, for example {"question": ..., "answer": ...}',
        )
    return copy.deepcopy(dict(task))
