"""The environment's side of its engine's process: start it, ask it, give up on it."""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from tinkergym.errors import EnvironmentInfrastructureError, EnvironmentTimeoutError, InvalidEnvironmentError

_START_SECONDS = 60.0
_CLOSE_SECONDS = 2.0
_MOST_LOG = 2_000
"""Characters of the process's last words that an error shows."""
WORKER = (sys.executable, "-m", "tinkergym_alfworld.worker")


def refuse_missing_packages() -> None:
    """Check that ALFWorld and TextWorld are installed, without importing them.

    Raises:
        InvalidEnvironmentError: One is not.
    """
    for package in ("alfworld", "textworld"):
        if importlib.util.find_spec(package) is None:
            raise InvalidEnvironmentError(
                f"the package {package} is not installed",
                hint="in a checkout: pip install './envs/alfworld[games]'; that needs a C++ compiler",
                field="environment",
            )


class EngineProcess:
    """A process that plays one game at a time, started by the first question. For one thread at a time."""

    def __init__(self, *, call_seconds: float, command: Sequence[str] = WORKER) -> None:
        """Prepare.

        Args:
            call_seconds: How long an answer may take.
            command: What to start.
        """
        self._call_seconds, self._command = call_seconds, list(command)
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._log: Any = None

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Have the engine do something and return its answer.

        Raises:
            EnvironmentInfrastructureError: The engine raised or its process ended; the next question starts
                another.
            EnvironmentTimeoutError: No answer came in time; the process was killed.
        """
        begun = self._process is None
        if self._process is None:
            self._start()
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=self._call_seconds + (_START_SECONDS if begun else 0))
        except queue.Empty:
            self.close(kill=True)
            raise EnvironmentTimeoutError(
                f"ALFWorld's engine did not answer within {self._call_seconds:g} s",
                hint="raise call_seconds, or choose games with smaller rooms",
            ) from None
        except OSError:
            line = ""
        if not line:
            words = self._last_words()
            self.close(kill=True)
            raise EnvironmentInfrastructureError(
                f"the process of ALFWorld's engine ended: {words or 'it said nothing'}",
                hint="reset starts another",
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            # What state a failed engine is in is not known.
            self.close(kill=True)
            raise EnvironmentInfrastructureError(
                f"ALFWorld's engine failed: {answer['error']}\n{answer.get('traceback', '')}".strip()
            )
        return answer

    def close(self, *, kill: bool = False) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()  # its cue to end
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
            # ALFWorld makes the folder that this names, and its cache in the home folder if it is not set.
            env={**os.environ, "ALFWORLD_DATA": os.environ.get("ALFWORLD_DATA") or tempfile.gettempdir()},
        )
        # Lines of a process that ended may still lie in an old queue, so each process has its own.
        self._lines = queue.SimpleQueue()
        threading.Thread(
            target=_read, args=(self._process, self._lines), name="alfworld engine", daemon=True
        ).start()

    def _last_words(self) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _MOST_LOG))
        return str(self._log.read().decode("utf-8", errors="replace").strip())


def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.put(line)
    lines.put("")
