"""Tasks that are already in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tinkergym.tasks.in_memory import InMemoryTasks, copied
from tinkergym.tasks.source import Task, refuse_empty

Rows = Sequence[Mapping[str, Any]]


class SequenceTasks(InMemoryTasks):
    """The mappings of a Python sequence: a list, or an opened `datasets.Dataset`.

    The sequence is not copied, but tasks are copied when read, so episodes cannot change each other's.

    Example:
        >>> CAPITALS = SequenceTasks([{"country": "France", "capital": "Paris"}])
        >>> tasks = SequenceTasks({"train": easy, "test": hard}, split="train")
    """

    def __init__(self, tasks: Rows | Mapping[str, Rows], *, split: str | None = None) -> None:
        """Set the tasks.

        Args:
            tasks: The tasks, or a mapping from splits to them.
            split: The split, for a mapping.

        Raises:
            InvalidRequestError: There is no such split; the error lists the existing ones.
        """
        self._tasks = self._part(tasks, split, what="the sequence")

    @property
    def name(self) -> str:
        """A description for messages."""
        return f"the {type(self._tasks).__name__} of tasks"

    def __len__(self) -> int:
        return refuse_empty(self, len(self._tasks))

    def read(self, index: int) -> Task:
        """Return a copy of a task.

        Raises:
            InvalidRequestError: It is not a mapping.
        """
        return copied(self._tasks[index], index, self.name)
