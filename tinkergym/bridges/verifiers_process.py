"""The process of a verifiers environment, seen from here: shared by all environments of its kind."""

from __future__ import annotations

import itertools
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tinkergym.errors import EnvironmentInfrastructureError, EnvironmentTimeoutError, InvalidEnvironmentError
from tinkergym.user_code.quoting import quoted

PYTHON_VARIABLE = "TINKERGYM_VERIFIERS_PYTHON"
"""Environment variable: the Python with verifiers, if it is not this one. Not an argument of an environment,
because jobs may come from other users."""

_START_SECONDS = 300.0
"""An environment may download its dataset when it is created."""
_CLOSE_SECONDS = 2.0
_MOST_LINE = 2**26
"""Characters of a response; a longer line is not one."""
_MOST_LOG = 2_000
"""Characters of the process's last output, or of its error, that an error shows."""
_WORKER = Path(__file__).with_name("verifiers_worker.py")

Answer = dict[str, Any]


class VerifiersProcess:
    """A process. Any number of threads may send requests at once; each waits for its own response."""

    def __init__(self, environment: str, arguments: Mapping[str, Any]) -> None:
        """Start it and wait until the environment is loaded.

        Raises:
            InvalidEnvironmentError: verifiers is not installed there, or the environment cannot be loaded, or
                not in time.
        """
        self._waiting: dict[int, queue.SimpleQueue[Answer | None]] = {-1: queue.SimpleQueue()}
        self._ended = False
        self._unreadable = ""
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        python = os.environ.get(PYTHON_VARIABLE) or sys.executable
        # Without -P this file's folder would come first, and its verifiers.py would be imported as the
        # package.
        command = [python, "-P", str(_WORKER), environment, json.dumps(dict(arguments))]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                encoding="utf-8",
                errors="replace",
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        except OSError as error:
            raise InvalidEnvironmentError(
                f"{PYTHON_VARIABLE}: {python} cannot be started: {error}", field="environment"
            ) from None
        threading.Thread(target=self._read, name=f"verifiers {environment}", daemon=True).start()
        with ExitStack() as unless_loaded:
            unless_loaded.callback(self.close)
            self._load(environment, python)
            unless_loaded.pop_all()

    @property
    def alive(self) -> bool:
        """Whether it is running."""
        return self._process.poll() is None

    def ask(self, do: str, *, timeout_seconds: float, **arguments: Any) -> Answer:
        """Send a request and return the response.

        Raises:
            EnvironmentInfrastructureError: The environment raised an error, or its process ended.
            EnvironmentTimeoutError: There was no response in time.
        """
        number = next(self._numbers)
        with self._lock:
            waiting: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
            self._waiting[number] = waiting
            if self._ended:
                waiting.put(None)
            assert self._process.stdin is not None
            with suppress(OSError, ValueError):  # the reader then finds that it has ended
                self._process.stdin.write(json.dumps({"i": number, "do": do, **arguments}) + "\n")
                self._process.stdin.flush()
        answer = self._wait(number, timeout_seconds)
        if "error" in answer:
            raise EnvironmentInfrastructureError(
                f"the environment failed: {str(answer['error'])[:_MOST_LOG]}\n"
                f"{str(answer.get('traceback', ''))[-_MOST_LOG:]}".strip()
            )
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()  # this tells it to end
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _load(self, environment: str, python: str) -> None:
        try:
            loaded = self._wait(-1, _START_SECONDS)
        except EnvironmentTimeoutError:
            raise InvalidEnvironmentError(
                f"verifiers did not load {environment!r} within {_START_SECONDS:g} s",
                hint="download its dataset first: load it once in that Python",
                field="environment",
            ) from None
        except EnvironmentInfrastructureError as error:
            if not self._unreadable:
                raise
            raise InvalidEnvironmentError(
                error.message,
                hint=f"{PYTHON_VARIABLE} must name a Python that prints nothing itself; it is {python}",
                field="environment",
            ) from None
        if "error" in loaded:
            raise _not_loaded(environment, python, loaded)

    def _wait(self, number: int, seconds: float) -> Answer:
        try:
            answer = self._waiting[number].get(timeout=seconds)
        except queue.Empty:
            raise EnvironmentTimeoutError(
                f"the environment did not respond within {seconds:g} s",
                hint="raise step_timeout_seconds if it is slow",
            ) from None
        finally:
            with self._lock:
                self._waiting.pop(number, None)
        if answer is None:
            if self._unreadable:
                raise EnvironmentInfrastructureError(
                    f"the environment's process was ended because it printed {self._unreadable!r} instead of "
                    "a response",
                    hint="reset starts another",
                )
            raise EnvironmentInfrastructureError(
                f"the environment's process ended: {self._last_words() or 'it printed nothing'}",
                hint="reset starts another",
            )
        return answer

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            with self._process.stdout:
                for line in iter(partial(self._process.stdout.readline, _MOST_LINE), ""):
                    read = _number_and_answer(line)
                    if read is None:
                        self._unreadable = quoted(line.strip())
                        self._process.kill()
                        break
                    with self._lock:
                        waiting = self._waiting.get(read[0])
                    if waiting is not None:
                        waiting.put(read[1])
            self._process.wait()
        finally:
            with self._lock:
                self._ended = True
                for waiting in self._waiting.values():
                    waiting.put(None)

    def _last_words(self) -> str:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _MOST_LOG))
        return self._log.read().decode("utf-8", errors="replace").strip()


_processes: dict[tuple[str, str, str], VerifiersProcess] = {}
_processes_lock = threading.Lock()


def process_for(environment: str, arguments: Mapping[str, Any]) -> VerifiersProcess:
    """Return this program's process for an environment; it is started once, and again after it has ended.

    Raises:
        InvalidEnvironmentError: It cannot be loaded.
    """
    python = os.environ.get(PYTHON_VARIABLE, "")
    key = (python, environment, json.dumps(dict(arguments), sort_keys=True))
    with _processes_lock:
        found = _processes.get(key)
        if found is None or not found.alive:
            found = _processes[key] = VerifiersProcess(environment, arguments)
        return found


def _number_and_answer(line: str) -> tuple[int, Answer] | None:
    """Read a line of the process; None if it is not a response."""
    try:
        answer = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict) or not isinstance(answer.get("i"), int):
        return None
    return answer.pop("i"), answer


def _not_loaded(environment: str, python: str, answer: Answer) -> InvalidEnvironmentError:
    error = str(answer["error"])[:_MOST_LOG]
    if error.startswith("ModuleNotFoundError: No module named 'verifiers"):
        return InvalidEnvironmentError(
            f"verifiers is not installed for {python}",
            hint=f"install it in a separate virtual environment, and set {PYTHON_VARIABLE} to its Python",
            field="environment",
        )
    return InvalidEnvironmentError(
        f"verifiers cannot load {environment!r}: {error}",
        hint="install its package next to verifiers, or correct environment and arguments",
        field="environment",
    )
