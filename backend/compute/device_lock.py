"""The lock on a device; on a CPU it includes OpenMP's helper threads.

GNU's OpenMP gives every computing thread its own helpers, and keeps them. If there are more threads than
cores, they sleep at every short wait, and each operation of a model, of which a forward pass has hundreds,
takes about 80 microseconds longer. So only the holder of the lock has helpers, and ends them on release:
creating new ones costs about 0.1 ms per turn.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

from backend.fairness.fair_lock import FairLock

_MAPS = Path("/proc/self/maps")
_PAUSE_SOFT = 1
"""`omp_pause_soft`: settings stay, threads end."""


class DeviceLock(FairLock):
    """Held while something is computed on a device; first come, first served.

    On a CPU, a computation with fewer threads may take only some of the cores: `cores`, or `KeptCore`.
    """

    def __init__(self, *, cpu_threads: int | None = None) -> None:
        """Prepare.

        Args:
            cpu_threads: The holder's number of threads on a CPU; None does not change threads.
        """
        super().__init__(places=cpu_threads or 1)
        self._cpu_threads = cpu_threads
        self._holders_threads = 1
        """The holder's number of threads when it does not hold the lock."""

    def __enter__(self) -> None:
        super().__enter__()
        if self._cpu_threads is not None:
            # A new thread takes over the process's number on first use, and would do so later.
            self._holders_threads = torch.get_num_threads()
            _compute_with(self._cpu_threads)

    def __exit__(self, *exception: object) -> None:
        try:
            if self._cpu_threads is not None:
                release_openmp_threads()
                _compute_with(self._holders_threads)
        finally:
            super().__exit__(*exception)

    @contextmanager
    def cores(self, count: int) -> Iterator[None]:
        """Take some cores, at most all. The caller sets its number of threads."""
        count = min(count, self.places)
        self.take(count)
        try:
            yield
        finally:
            self.give(count)


class KeptCore:
    """One core of a device, kept by its holder between two pieces of work unless all cores are requested.

    So a thread with small pieces of work does not wait for another thread's large one after each.
    Used with `with`, by one thread.
    """

    def __init__(self, lock: DeviceLock, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._lock, self._clock = lock, clock
        self._held = False
        self._own_until = 0.0
        self.shares = False
        """Whether a thread that waits for one core gets it, once this one had it for as long as it waited."""

    def __enter__(self) -> None:
        if not self._held:
            began = self._clock()
            self._lock.take(1)
            self._held, now = True, self._clock()
            self._own_until = now + (now - began)

    def __exit__(self, *exception: object) -> None:
        due = self.shares and self._lock.awaited and self._clock() >= self._own_until
        if due or self._lock.wholly_awaited:
            self.give_back()

    @contextmanager
    def with_others(self, *, wait: bool) -> Iterator[None]:
        """Compute with all threads, or with as many as there are free cores.

        Args:
            wait: Wait for the cores that others hold.
        """
        if wait or self._lock.places == 1:
            # Before waiting for all cores, which would otherwise wait for its own.
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
        """Release it, if it is held."""
        if self._held:
            self._held = False
            self._lock.give(1)


def release_openmp_threads() -> None:
    """End the helpers of this thread; it gets new ones when it needs them."""
    for library in _libraries(ctypes.CDLL):
        library.omp_pause_resource_all(_PAUSE_SOFT)


def compute_alone() -> None:
    """From now on compute in this thread without helpers, except while it holds a device's lock."""
    # A new thread takes over the process's number on first use, which would undo the next line.
    torch.get_num_threads()
    _compute_with(1)
    release_openmp_threads()


def can_divide_threads() -> bool:
    """Whether the number of computing threads can be set here for a single thread."""
    return bool(_libraries())


@contextmanager
def computing_with(threads: int) -> Iterator[None]:
    """Compute in this thread with this many threads, and leave no helpers behind."""
    before = torch.get_num_threads()
    _openmp_with(threads)
    with _products_by(threads):
        try:
            yield
        finally:
            if threads > 1:
                release_openmp_threads()
            _openmp_with(before)


def products_undivided() -> AbstractContextManager[None]:
    """Let MKL compute each product in the calling thread, while the operations around it use several threads.

    Fused attention gives its threads many small products each. If MKL tries to parallelize these again, it
    gets two to three times slower, even if it then decides not to. Helpers use the process's number, which is
    1 in pool workers.
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
    """Return GNU's OpenMP as loaded in this process; other OpenMP libraries manage threads differently.

    Args:
        kind: `PyDLL` for calls that only set a number, to avoid releasing Python's lock and waiting for it.
            `CDLL` for calls that wait.
    """
    return _loaded("libgomp", "omp_pause_resource_all", kind)


@cache
def _mkl() -> tuple[Any, ...]:
    """Return MKL as loaded: it has its own number of threads per process, unless a thread has one."""
    return _loaded("libtorch_cpu", "MKL_Set_Num_Threads_Local", ctypes.PyDLL)


def _loaded(name: str, function: str, kind: type[ctypes.CDLL]) -> tuple[Any, ...]:
    if not _MAPS.exists():
        return ()
    # The sixth field; a path may contain spaces.
    paths = {line.split(maxsplit=5)[-1] for line in _MAPS.read_text().splitlines() if name in line}
    found = [kind(path) for path in sorted(paths) if path.startswith("/")]
    return tuple(library for library in found if hasattr(library, function))
