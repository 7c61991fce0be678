"""TaskSource: the interface through which an environment reads its tasks, however they are stored."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np

from tinkergym.errors import InvalidRequestError

Task = dict[str, Any]


class TaskSource(Sequence[Task]):
    """Numbered tasks of one split.

    Creating a source in an environment's constructor reads nothing, so an environment is cheap until it is
    played. A source can be pickled: its data is not included and is read again when needed. Environments of
    one process that use the same source share its data.

    An environment with a source in any attribute is data-dependent (`tinkergym.tasks.grid`). A source cannot
    be an argument of the environment, because arguments are sent as JSON: pass a path and a split instead.

    Your own source needs `name`, `fingerprint`, `__len__` and `read`.
    """

    split: str | None = None
    """The split; None if the data has no splits."""

    splits: tuple[str, ...] = ()
    """All splits, as far as they are known without reading data."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name for messages, such as a file's."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """SHA-256 in hex: the same content has the same fingerprint in any process."""

    @abstractmethod
    def read(self, index: int) -> Task:
        """Return task number `index`, from 0 to `len(self) - 1`. The caller may modify it."""

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self.read(i) for i in range(*index.indices(len(self)))]
        return self.read(range(len(self))[index])

    def choose(
        self, np_random: np.random.Generator, options: Mapping[str, Any] | None = None
    ) -> tuple[int, Task]:
        """Return a task and its index: the one in `options["task_index"]`, else a random one.

        Args:
            np_random: The environment's generator; not used if the task is given.
            options: The options of `reset`.

        Raises:
            InvalidRequestError: There is no task with that index.
        """
        count = len(self)
        index = (options or {}).get("task_index")
        if index is None:
            index = int(np_random.integers(count))
        number = isinstance(index, int | np.integer) and not isinstance(index, bool)
        if not number or not 0 <= index < count:
            raise InvalidRequestError(
                f"{self.name} has no task {index!r}", hint=f"0 to {count - 1}", field="task_index"
            )
        return int(index), self.read(int(index))

    def __repr__(self) -> str:
        part = "" if self.split is None else f", split={self.split!r}"
        return f"{type(self).__name__}({self.name!r}{part})"


def refuse_empty(source: TaskSource, count: int) -> int:
    """Return `count`.

    Raises:
        InvalidRequestError: It is 0: an environment needs tasks.
    """
    if not count:
        raise InvalidRequestError(f"{source.name} has no tasks", field="path")
    return count


def named_split(name: str, splits: Sequence[str], split: str | None) -> str:
    """Return `split`.

    Raises:
        InvalidRequestError: It is not one of `splits`; the error lists them.
    """
    if split is None or split not in splits:
        raise InvalidRequestError(
            f"{name} has no split {split!r}",
            hint=f"choose from {sorted(splits)}" if splits else "it has none",
            field="split",
        )
    return split


def refuse_split(name: str, split: str | None) -> None:
    """Refuse a split if there are none.

    Raises:
        InvalidRequestError: A split was given.
    """
    if split is not None:
        raise InvalidRequestError(
            f"{name} has no splits, so {split!r} cannot be chosen",
            hint="leave out split, or use data with one part per split",
            field="split",
        )
