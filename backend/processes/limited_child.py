"""A warm child process for work on untrusted input, with limited CPU time, memory and time per question.

The parent asks with `LimitedChild`, the child's program answers with `answer_questions`. The child is started
by the first question, and again after one that ended it. It ends with its parent: its input ends then.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Literal

import psutil

from backend.processes import quick_start
from backend.processes.children import MARK_VARIABLE

_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "LD_LIBRARY_PATH", MARK_VARIABLE)
"""Variables that it inherits: what Python needs, and no keys of the operator."""
_ANSWERED, _NO_MEMORY = b"+", b"m"
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildLimits:
    """Limits of each question."""

    cpu_seconds: int
    memory_bytes: int
    """Address space on top of what the child has after its imports."""
    wall_seconds: float


class ChildLimitError(Exception):
    """A question was not answered; the next one goes to a new child.

    Attributes:
        limit: `cpu` or `memory` was used up, `time` passed (perhaps because the machine is busy), or the
            child ended for another reason (`crash`).
    """

    def __init__(self, limit: Literal["cpu", "memory", "time", "crash"]) -> None:
        super().__init__(limit)
        self.limit = limit


class LimitedChild:
    """Asks a child one question after the other. Thread-safe; a question's deadline begins at its turn."""

    def __init__(self, module: str, limits: ChildLimits) -> None:
        """Start the module, whose `main` must call `answer_questions`."""
        self._module, self._limits = module, limits
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None

    def ask(self, question: bytes) -> bytes:
        """Return the child's answer to a question, which is not empty.

        Raises:
            ChildLimitError: There is none within the limits.
        """
        with self._lock:
            # One that was killed from outside since the last question is replaced.
            if self._child is None or self._child.poll() is not None:
                self._close()
                self._child = self._started()
            child, answer = self._child, b""
            assert child.stdin and child.stdout
            with _deadline(child, self._limits.wall_seconds) as expired, suppress(OSError):
                _send(child.stdin, question)
                answer = _received(child.stdout)
            if expired.is_set() or answer[:1] != _ANSWERED:
                self._close()
        if answer[:1] == _ANSWERED:
            return answer[1:]
        if expired.is_set():
            raise ChildLimitError("time")
        if answer == _NO_MEMORY:
            raise ChildLimitError("memory")
        raise ChildLimitError("cpu" if child.returncode == -signal.SIGXCPU else "crash")

    def close(self) -> None:
        """End the child."""
        with self._lock:
            self._close()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                *quick_start.command(self._module),
                *(str(self._limits.cpu_seconds), str(self._limits.memory_bytes)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
            start_new_session=True,  # A Ctrl-C in the terminal is for the parent.
        )

    def _close(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin and child.stdout
        with suppress(OSError):
            child.stdin.close()
        # One that ends by itself, by a limit, says which.
        with suppress(OSError):
            child.stdout.read()
        child.stdout.close()
        child.wait()


@contextmanager
def _deadline(child: subprocess.Popen[bytes], seconds: float) -> Iterator[threading.Event]:
    """Kill the child after some time; yields the event that says so."""
    expired = threading.Event()

    def end() -> None:
        expired.set()
        child.kill()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield expired
    finally:
        timer.cancel()
        timer.join()  # An answer that came just in time is followed by a new child.


def answer_questions(answer: Callable[[bytes], bytes]) -> None:
    """Answer questions until there are no more; the program of the child, after its imports.

    What `answer` raises ends the child, except `MemoryError`, which is reported first.
    """
    cpu_seconds, memory_bytes = map(int, sys.argv[1:3])
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Anything printed from now on.
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, psutil.Process().memory_info().vms + memory_bytes)
    while question := _received(sys.stdin.buffer):
        usage = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, math.ceil(usage.ru_utime + usage.ru_stime) + cpu_seconds)
        try:
            found = _ANSWERED + answer(question)
        except MemoryError:
            found = _NO_MEMORY
        _send(answers, found)


def _limit(kind: int, value: int) -> None:
    # Only the soft limit: that of CPU time is raised for the next question. Not every system has all limits.
    with suppress(ValueError, OSError):
        resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))


def _send(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(len(data).to_bytes(_LENGTH_BYTES, "big") + data)
    pipe.flush()


def _received(pipe: IO[bytes]) -> bytes:
    """Return what the other side sent, or nothing if it ended before."""
    length = int.from_bytes(pipe.read(_LENGTH_BYTES), "big")
    data = pipe.read(length)
    return data if len(data) == length else b""
