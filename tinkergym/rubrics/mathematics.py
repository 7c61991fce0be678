"""math_equal: whether an answer is mathematically equal to the gold answer.

math-verify parses and compares; it runs in helper processes, so it works in any thread, and a comparison that
never ends only costs its time limit.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tinkergym.errors import EnvironmentInfrastructureError, InvalidRequestError

MOST_CHARACTERS = 10_000
"""A longer answer is not parsed and not equal."""

_WORKER = Path(__file__).with_name("math_worker.py")
_INTEGER = re.compile(r"[+-]?\d{1,300}", re.ASCII)
_START_SECONDS = 60.0
_WALL_PER_CPU_SECOND = 10.0
"""How much slower a helper may run on a busy machine before it counts as lost."""
_MOST_HELPERS = max(1, min(4, os.cpu_count() or 1))


def math_equal(answer: str, gold: str, *, timeout_seconds: float = 5.0) -> bool:
    r"""Return whether an answer equals the gold one: `0.5` and `\frac{1}{2}`, `{2, 1}` and `\{1,2\}`.

    In an answer with sentences, the text in `\boxed{...}` or between dollar signs counts, else a number. An
    answer that cannot be parsed, is longer than 10,000 characters or takes too long to compare is not equal:
    the policy must write an answer that can be checked.

    May be called from any thread. The first call takes about a second, for a helper process to start.

    Args:
        answer: The policy's answer; any text.
        gold: The right answer, as LaTeX or as plain text.
        timeout_seconds: Limit of computing time, not of waiting time.

    Raises:
        InvalidRequestError: The gold answer is empty or too long, or math-verify is not installed.
        EnvironmentInfrastructureError: The helper process cannot be started, or was killed externally.
    """
    said, right = answer.strip(), gold.strip()
    if not right or len(right) > MOST_CHARACTERS:
        raise InvalidRequestError(
            f"must have 1 to {MOST_CHARACTERS} characters, not {len(right)}", field="gold"
        )
    if said == right:
        return True
    if not said or len(said) > MOST_CHARACTERS:
        return False
    if _INTEGER.fullmatch(said) and _INTEGER.fullmatch(right):
        return int(said) == int(right)
    # A lone surrogate cannot be encoded as JSON.
    said = said.encode("utf-8", "replace").decode()
    return _helpers().compare(said, right, timeout_seconds)


class _Helper:
    """One helper process."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            # -P: a file in the working folder must not shadow a module.
            [sys.executable, "-P", str(_WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONHASHSEED": "0"},
            start_new_session=True,
        )
        if self._line(_START_SECONDS) != "ready":
            self.close()
            raise EnvironmentInfrastructureError(
                "the helper process of math_equal did not start",
                hint=f"try `{sys.executable} {_WORKER}`, which prints ready if it works",
            )

    def ask(self, answer: str, gold: str, seconds: float) -> dict[str, Any] | None:
        """Return the reply, or None if the process died, from its time limit or otherwise."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps([answer, gold, seconds]).encode() + b"\n")
            self._process.stdin.flush()
            line = self._line(_START_SECONDS + _WALL_PER_CPU_SECOND * seconds)
        except BrokenPipeError:
            line = ""
        if line is None:
            self.close()
            raise EnvironmentInfrastructureError(
                "the helper process of math_equal does not respond", hint="the machine may be overloaded"
            )
        return json.loads(line) if line else None

    def close(self) -> int:
        """End the process and return its exit status."""
        self._process.kill()
        status = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        return status

    def _line(self, seconds: float) -> str | None:
        """Return the next line, "" at the end, None after a timeout."""
        assert self._process.stdout is not None
        # One line per question, so the buffer never contains part of the next.
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        return self._process.stdout.readline().decode().strip() if ready else None


class _Helpers:
    """A few processes, started on demand."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._idle: list[_Helper] = []
        self._free = threading.Semaphore(_MOST_HELPERS)

    def compare(self, answer: str, gold: str, seconds: float) -> bool:
        with self._free:
            # If a process dies twice with the same question, the question is the cause.
            for _ in range(2):
                helper = self._take()
                try:
                    reply = helper.ask(answer, gold, seconds)
                except BaseException:
                    helper.close()
                    raise
                if reply is not None:
                    self._idle.append(helper)
                    return bool(reply["equal"])
                if helper.close() == -signal.SIGPROF:
                    return False
            return False

    def close(self) -> None:
        if self.owner == os.getpid():
            while self._idle:
                self._idle.pop().close()

    def _take(self) -> _Helper:
        try:
            return self._idle.pop()
        except IndexError:
            return _Helper()


_lock = threading.Lock()
_shared: _Helpers | None = None


def _helpers() -> _Helpers:
    """Return this process's helpers. A forked child must not use its parent's."""
    global _shared  # noqa: PLW0603 - one per process
    with _lock:
        if _shared is None or _shared.owner != os.getpid():
            if importlib.util.find_spec("math_verify") is None:
                raise InvalidRequestError(
                    "math_equal needs math-verify",
                    hint='install it: pip install ".[math]" in a checkout of tinkergym',
                )
            _shared = _Helpers()
            atexit.register(_shared.close)
        return _shared


def close_helpers() -> None:
    """End this process's helpers; the next comparison starts others."""
    global _shared  # noqa: PLW0603 - one per process
    with _lock:
        if _shared is not None:
            _shared.close()
        _shared = None
