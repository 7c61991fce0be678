"""Shared by task sources in memory: splits by name, copies, and a fingerprint of the rows."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TypeVar, cast

from tinkergym.errors import InvalidRequestError
from tinkergym.tasks.fingerprint import rows_fingerprint
from tinkergym.tasks.source import Task, TaskSource, named_split, refuse_split
from tinkergym.user_code.quoting import raised

Part = TypeVar("Part")


class InMemoryTasks(TaskSource):
    """Tasks without a file."""

    _fingerprint = ""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the tasks as JSON, in hex; reads or draws all of them."""
        if not self._fingerprint:
            self._fingerprint = rows_fingerprint(iter(self), self.name)
        return self._fingerprint

    def _part(self, given: Part | Mapping[str, Part], split: str | None, *, what: str) -> Part:
        """Return the split of a mapping, or the value itself if it has no splits.

        Raises:
            InvalidRequestError: There is no such split; the error lists the existing ones.
        """
        if not isinstance(given, Mapping):
            refuse_split(what, split)
            return given
        self.splits = tuple(given)
        self.split = named_split("the mapping", self.splits, split)
        return cast("Part", given[self.split])


def copied(task: object, index: int, name: str) -> Task:
    """Return a copy of a task as a dict.

    Raises:
        InvalidRequestError: It is not a mapping, or holds a value that cannot be copied.
    """
    if not isinstance(task, Mapping):
        raise InvalidRequestError(
            f"task {index} of {name} is a {type(task).__name__}",
            hint='a task must be a mapping, for example {"question": ..., "answer": ...}',
            code="not_a_mapping",
        )
    try:
        return copy.deepcopy(dict(task))
    # Any object may be in a task, and an image of Pillow reads its file only now.
    except Exception as error:
        raise InvalidRequestError(
            f"task {index} of {name} cannot be copied: {raised(error)}",
            hint="put plain data into tasks, and images as the bytes of their files",
        ) from error
