"""Tasks that a program makes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tinkergym.errors import InvalidRequestError
from tinkergym.tasks.rows import RowTasks, copied
from tinkergym.tasks.shared import shared
from tinkergym.tasks.source import Task

Make = Callable[[], Iterable[Mapping[str, Any]]]


class GeneratorTasks(RowTasks):
    """The first `count` tasks that a generator yields, drawn when they are asked for and then kept.

    The generator must yield the same tasks each time it is started: every process starts its own. So it draws
    its chance from a generator with a fixed seed.

    Example:
        >>> def sums():
        ...     rng = np.random.default_rng(0)
        ...     while True:
        ...         a, b = rng.integers(100, size=2)
        ...         yield {"question": f"{a}+{b}", "answer": str(a + b)}
        >>> tasks = GeneratorTasks(sums, 10_000)
    """

    def __init__(self, make: Make | Mapping[str, Make], count: int, *, split: str | None = None) -> None:
        """Name the generator.

        Args:
            make: A function that starts it, or a mapping from splits to such functions. To be pickled, it
                must be a function of a module.
            count: How many tasks there are; those beyond are never drawn.
            split: The split, of a mapping.

        Raises:
            InvalidRequestError: `count` is below 1, or there is no such split.
        """
        if count < 1:
            raise InvalidRequestError(f"must be at least 1, not {count!r}", field="count")
        self._make, self._count = self._part(make, split, what="the generator"), count
        self._drawn: _Drawn | None = None

    @property
    def name(self) -> str:
        """The function's name."""
        return f"{getattr(self._make, '__qualname__', type(self._make).__name__)}()"

    def __len__(self) -> int:
        return self._count

    def read(self, index: int) -> Task:
        """Return a task, after drawing those before it if nobody has yet.

        Raises:
            InvalidRequestError: The generator ends or raises before it.
        """
        if self._drawn is None:
            self._drawn = shared(("generator", self._make), lambda: _Drawn(self._make))
        return copied(self._drawn.task(index, self.name), index, self.name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_drawn": None}


class _Drawn:
    """What a generator has yielded so far."""

    def __init__(self, make: Make) -> None:
        self._make = make
        self._iterator: Iterator[Mapping[str, Any]] | None = None
        self._tasks: list[Mapping[str, Any]] = []
        self._failure: Exception | None = None
        self._lock = threading.Lock()

    def task(self, index: int, name: str) -> Mapping[str, Any]:
        with self._lock:
            while len(self._tasks) <= index and self._failure is None:
                try:
                    if self._iterator is None:
                        self._iterator = iter(self._make())
                    self._tasks.append(next(self._iterator))
                # It is foreign code, and a generator that raised once only says that it is at its end.
                except Exception as error:
                    self._failure = error
            if index < len(self._tasks):
                return self._tasks[index]
            failure = self._failure
        if isinstance(failure, StopIteration):
            raise InvalidRequestError(
                f"{name} ended after {len(self._tasks)} tasks, and task {index} was asked for",
                hint="lower count to what it yields",
                field="count",
            )
        raise InvalidRequestError(
            f"{name} failed at task {len(self._tasks)}: {type(failure).__name__}: {failure}"
        ) from failure
