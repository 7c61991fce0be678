"""Tasks that are in memory already."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from tinkergym.errors import InvalidRequestError
from tinkergym.tasks.fingerprint import rows_fingerprint
from tinkergym.tasks.source import Task, TaskSource, named_split, refuse_empty, refuse_split

Rows = Sequence[Mapping[str, Any]]


class SequenceTasks(TaskSource):
    """The mappings of a Python sequence: a list, or an opened `datasets.Dataset`.

    The sequence is not copied. Tasks are, when they are read, so that no episode can change another's.

    Example:
        >>> CAPITALS = SequenceTasks([{"country": "France", "capital": "Paris"}])
        >>> tasks = SequenceTasks({"train": easy, "test": hard}, split="train")
    """

    def __init__(self, tasks: Rows | Mapping[str, Rows], *, split: str | None = None) -> None:
        """Name the tasks.

        Args:
            tasks: The tasks, or a mapping from splits to them.
            split: The split, of a mapping.

        Raises:
            InvalidRequestError: There is no such split; the error lists those that are there.
        """
        self._tasks: Rows
        if isinstance(tasks, Mapping):
            self.splits = tuple(tasks)
            self.split = named_split("the mapping", self.splits, split)
            self._tasks = tasks[self.split]
        else:
            refuse_split("the sequence", split)
            self._tasks = tasks
        self._fingerprint = ""

    @property
    def name(self) -> str:
        """What it is."""
        return f"the {type(self._tasks).__name__} of tasks"

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the tasks as JSON, in hex."""
        if not self._fingerprint:
            self._fingerprint = rows_fingerprint(iter(self), self.name)
        return self._fingerprint

    def __len__(self) -> int:
        return refuse_empty(self, len(self._tasks))

    def read(self, index: int) -> Task:
        """Return a copy of a task.

        Raises:
            InvalidRequestError: It is no mapping.
        """
        return copied(self._tasks[index], index, self.name)


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
