"""The environments' side of the engines' processes: starting, sharing, asking and giving up on them."""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tinkergym.errors import EnvironmentInfrastructureError, EnvironmentTimeoutError, InvalidEnvironmentError

_START_SECONDS = 300.0
"""Longer than a process takes: where a job has few cores, all its environments start theirs at once."""
_CLOSE_SECONDS = 2.0
_MOST_LOG = 2_000
"""Characters of the process's last output that an error shows."""
WORKER = (sys.executable, "-m", "tinkergym_alfworld.worker")


def refuse_missing_packages() -> None:
    """Check that ALFWorld and TextWorld are installed, without importing them.

    Raises:
        InvalidEnvironmentError: One of them is not installed.
    """
    for package in ("alfworld", "textworld"):
        if importlib.util.find_spec(package) is None:
            raise InvalidEnvironmentError(
                f"the package {package} is not installed",
                hint="in a checkout run pip install './envs/alfworld[games]', which needs a C++ compiler",
                field="environment",
            )


class EngineProcess:
    """A process that plays one game at a time, started by the first request. For one thread at a time."""

    def __init__(self, *, call_seconds: float, command: Sequence[str] = WORKER) -> None:
        """Prepare without starting the process.

        Args:
            call_seconds: Time limit for a response.
            command: The command that starts the process.
        """
        self.call_seconds, self._command = call_seconds, list(command)
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._log: Any = None

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Send a request to the engine and return its response.

        Raises:
            EnvironmentInfrastructureError: The engine raised an error or its process ended; the next request
                starts another.
            EnvironmentTimeoutError: There was no response in time; the process was killed.
        """
        begun = self._process is None
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=self.call_seconds + (_START_SECONDS if begun else 0))
        except queue.Empty:
            self.close(kill=True)
            raise EnvironmentTimeoutError(
                f"ALFWorld's engine did not respond within {self.call_seconds:g} s",
                hint="raise call_seconds, or choose games with smaller rooms",
            ) from None
        except OSError:
            line = ""
        except BaseException:  # An interrupt: this answer must not become that of the next request.
            self.close(kill=True)
            raise
        if not line:
            words = self._last_words()
            self.close(kill=True)
            raise EnvironmentInfrastructureError(
                f"the process of ALFWorld's engine ended: {words or 'it printed nothing'}",
                hint="reset starts another",
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            # The state of a failed engine is unknown.
            self.close(kill=True)
            raise EnvironmentInfrastructureError(
                f"ALFWorld's engine failed: {answer['error']}\n{answer.get('traceback', '')}".strip()
            )
        return answer

    @property
    def runs(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def close(self, *, kill: bool = False) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()  # this tells it to end
        if kill:
            process.kill()
        try:
            process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._log.close()

    def _start(self) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            encoding="utf-8",
            # ALFWorld creates the folder named here, or by default its cache in the home folder.
            env={**os.environ, "ALFWORLD_DATA": os.environ.get("ALFWORLD_DATA") or tempfile.gettempdir()},
        )
        # An old queue may still contain lines of an ended process, so each process has its own.
        self._lines = queue.SimpleQueue()
        threading.Thread(
            target=_read, args=(self._process, self._lines), name="alfworld engine", daemon=True
        ).start()

    def _last_words(self) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _MOST_LOG))
        return str(self._log.read().decode("utf-8", errors="replace").strip())


class EnginePool:
    """The engines that no episode of this program needs at the moment.

    A process takes two seconds of a core to start, and 75 MB. A job with evaluations has three times as many
    environments as it plays episodes at once, so an environment only has an engine while an episode lasts.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._idle: list[EngineProcess] = []
        self._users: weakref.WeakSet[object] = weakref.WeakSet()

    def take(self, user: object, *, call_seconds: float) -> EngineProcess:
        """Return an engine for an episode of an environment, `user`."""
        with self._lock:
            self._users.add(user)
            while self._idle:
                engine = self._idle.pop()
                if engine.runs:
                    engine.call_seconds = call_seconds
                    return engine
                engine.close()
        return EngineProcess(call_seconds=call_seconds, command=self._command)

    def give_back(self, engine: EngineProcess) -> None:
        """Keep an engine for the next episode of any environment."""
        with self._lock:
            self._idle.append(engine)

    def leave(self, user: object) -> None:
        """Forget an environment that is closed, and end engines without one."""
        with self._lock:
            self._users.discard(user)
            kept = len(self._users)
            unneeded, self._idle = self._idle[kept:], self._idle[:kept]
        for engine in unneeded:
            engine.close()


_pools: dict[tuple[int, Sequence[str]], EnginePool] = {}


def pool_of(command: Sequence[str]) -> EnginePool:
    """Return this process's pool of the engines that a command starts. A fork has its own."""
    return _pools.setdefault((os.getpid(), tuple(command)), EnginePool(command))


def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.put(line)
    lines.put("")
