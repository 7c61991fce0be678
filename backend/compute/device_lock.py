"""The lock on a device; on a CPU the cores' helper threads go with it.

GNU's OpenMP gives every thread of ours that computes helpers of its own, and keeps them. As soon as there are
more of them all than cores, they sleep whenever they wait for a moment, and each operation of a model, of
which a forward has hundreds, costs some 80 microseconds more. So whoever holds the lock has helpers, and who
lets go of it sends them home: making new ones costs about 0.1 ms per turn.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from backend.compute.fair_lock import FairLock

_MAPS = Path("/proc/self/maps")
_PAUSE_SOFT = 1
"""`omp_pause_soft`: settings stay, threads go."""


class DeviceLock(FairLock):
    """Held while something is computed on a device; first come, first served.

    On a CPU whoever computes with fewer threads may take fewer cores of it: `cores`, or `KeptCore`.
    """

    def __init__(self, *, cpu_threads: int | None = None) -> None:
        """Prepare.

        Args:
            cpu_threads: With how many threads the holder computes on a CPU; None leaves threads alone.
        """
        super().__init__(places=cpu_threads or 1)
        self._cpu_threads = cpu_threads
        self._holders_threads = 1
        """With how many the holder computes when it does not hold this."""

    def __enter__(self) -> None:
        super().__enter__()
        if self._cpu_threads is not None:
            # A new thread takes over the process's number when it first asks for it, and would do so later.
            self._holders_threads = torch.get_num_threads()
            _compute_with(self._cpu_threads)

    def __exit__(self, *exception: object) -> None:
        try:
            if self._cpu_threads is not None:
                send_helpers_home()
                _compute_with(self._holders_threads)
        finally:
            super().__exit__(*exception)

    @contextmanager
    def cores(self, count: int) -> Iterator[None]:
        """Take some cores, at most all; that as many threads compute is for the caller."""
        count = min(count, self.places)
        self.take(count)
        try:
            yield
        finally:
            self.give(count)


class KeptCore:
    """One core of a device, which its holder keeps between two pieces of work while nobody wants all cores.

    So a thread whose work comes in small pieces does not wait for a large one of somebody else after each.
    Used with `with`, by one thread.
    """

    def __init__(self, lock: DeviceLock) -> None:
        self._lock = lock
        self._held = False

    def __enter__(self) -> None:
        if not self._held:
            self._lock.take(1)
            self._held = True

    def __exit__(self, *exception: object) -> None:
        if self._lock.wholly_awaited:
            self.give_back()

    @contextmanager
    def with_others(self, *, wait: bool) -> Iterator[None]:
        """Compute with all threads, or with as many as there are cores free.

        Args:
            wait: For the cores that others have.
        """
        if wait or self._lock.places == 1:
            self.give_back()
            with self._lock:
                yield
            return
        with self:
            more = self._lock.take_free()
            try:
                with computing_with(1 + more):
                    yield
            finally:
                self._lock.give(more)

    def give_back(self) -> None:
        """Let go of it, if it is held."""
        if self._held:
            self._held = False
            self._lock.give(1)


def send_helpers_home() -> None:
    """End the helpers of this thread; it gets new ones when it needs them."""
    for library in _libraries(ctypes.CDLL):
        library.omp_pause_resource_all(_PAUSE_SOFT)


def compute_alone() -> None:
    """From now on compute in this thread without helpers, except where it holds a device's lock."""
    torch.get_num_threads()
    _compute_with(1)
    send_helpers_home()


def can_divide_threads() -> bool:
    """Whether the threads that a thread computes with can be set here for it alone."""
    return bool(_libraries())


@contextmanager
def computing_with(threads: int) -> Iterator[None]:
    """Compute in this thread with so many, and leave no helpers behind."""
    before = torch.get_num_threads()
    _openmp_with(threads)
    with _products_by(threads):
        try:
            yield
        finally:
            if threads > 1:
                send_helpers_home()
            _openmp_with(before)


def products_undivided() -> AbstractContextManager[None]:
    """Let MKL compute each product in the thread that asks for it, while operations around it are divided.

    Fused attention gives its threads many small products each; that MKL would divide these again makes it
    two to three times slower, even where it then finds that it cannot. Helpers have the process's number,
    which is 1 in pool workers.
    """
    return _products_by(1)


@contextmanager
def _products_by(threads: int) -> Iterator[None]:
    before = [library.MKL_Set_Num_Threads_Local(threads) for library in _mkl()]
    try:
        yield
    finally:
        for library, number in zip(_mkl(), before, strict=True):
            library.MKL_Set_Num_Threads_Local(number)


def _compute_with(threads: int) -> None:
    _openmp_with(threads)
    for library in _mkl():
        library.MKL_Set_Num_Threads_Local(threads)


def _openmp_with(threads: int) -> None:
    for library in _libraries():
        library.omp_set_num_threads(threads)


@cache
def _libraries(kind: type[ctypes.CDLL] = ctypes.PyDLL) -> tuple[Any, ...]:
    """Return GNU's OpenMP as it is loaded into this process; another OpenMP keeps its threads otherwise.

    Args:
        kind: `PyDLL` for calls that only set a number: not for them shall Python's lock be let go, and waited
            for. `CDLL` for those that wait themselves.
    """
    return _loaded("libgomp", "omp_pause_resource_all", kind)


@cache
def _mkl() -> tuple[Any, ...]:
    """Return MKL as it is loaded: it has a number of its own, of the process, unless the thread has one."""
    return _loaded("libtorch_cpu", "MKL_Set_Num_Threads_Local", ctypes.PyDLL)


def _loaded(name: str, function: str, kind: type[ctypes.CDLL]) -> tuple[Any, ...]:
    if not _MAPS.exists():
        return ()
    # The sixth field; a path may have spaces in it.
    paths = {line.split(maxsplit=5)[-1] for line in _MAPS.read_text().splitlines() if name in line}
    found = [kind(path) for path in sorted(paths) if path.startswith("/")]
    return tuple(library for library in found if hasattr(library, function))
