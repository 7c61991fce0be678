"""Tasks that are in memory already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinkergym.tasks.rows import RowTasks, copied
from tinkergym.tasks.source import Task, refuse_empty

Rows = Sequence[Mapping[str, Any]]


class SequenceTasks(RowTasks):
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
        self._tasks = self._part(tasks, split, what="the sequence")

    @property
    def name(self) -> str:
        """What it is."""
        return f"the {type(self._tasks).__name__} of tasks"

    def __len__(self) -> int:
        return refuse_empty(self, len(self._tasks))

    def read(self, index: int) -> Task:
        """Return a copy of a task.

        Raises:
            InvalidRequestError: It is no mapping.
        """
        return copied(self._tasks[index], index, self.name)
