"""TaskSource: the one form in which an environment sees its tasks, wherever they are kept."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy as np

from tinkergym.errors import InvalidRequestError

Task = dict[str, Any]


class TaskSource(Sequence[Task]):
    """Numbered tasks of one split.

    A source is named in an environment's constructor and reads nothing there, so that an environment costs
    little until it is played. It can be pickled: what it has read stays behind and is read again where it is
    needed. Environments of one process that name the same source share what was read.

    An environment that keeps one, under any attribute, is data-dependent (`tinkergym.tasks.grid`). It
    must not be an argument of the environment: those travel as JSON, so they name the data (a path, a split).

    A source of your own needs `name`, `fingerprint`, `__len__` and `read`.
    """

    split: str | None = None
    """Which part of the data this is; None where the data has no parts."""

    splits: tuple[str, ...] = ()
    """All parts that can be named, as far as that is known without reading data."""

    @property
    @abstractmethod
    def name(self) -> str:
        """For messages: a file's name, or the like."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """SHA-256 in hex: equal content, equal fingerprint, in any process."""

    @abstractmethod
    def read(self, index: int) -> Task:
        """Return task number `index`, from 0 to `len(self) - 1`; the caller may change what it gets."""

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
        """Return a task and its index: what `options["task_index"]` names, else a random one.

        Args:
            np_random: The environment's; a task that is named draws nothing from it.
            options: What `reset` was given.

        Raises:
            InvalidRequestError: There is no task of that number.
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
        InvalidRequestError: It is 0: an environment without tasks can ask nothing.
    """
    if not count:
        raise InvalidRequestError(f"{source.name} holds no tasks", field="path")
    return count


def named_split(name: str, splits: Sequence[str], split: str | None) -> str:
    """Return `split`.

    Raises:
        InvalidRequestError: It is none of `splits`; the error lists them.
    """
    if split is None or split not in splits:
        raise InvalidRequestError(
            f"{name} has no split {split!r}", hint=f"choose from {sorted(splits)}", field="split"
        )
    return split


def refuse_split(name: str, split: str | None) -> None:
    """Refuse a split where there are none to choose from.

    Raises:
        InvalidRequestError: One was named.
    """
    if split is not None:
        raise InvalidRequestError(
            f"{name} is not divided into splits, so {split!r} cannot be chosen",
            hint="leave split away, or name what holds one part per split",
            field="split",
        )
