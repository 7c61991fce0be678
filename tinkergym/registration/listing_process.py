"""A child process that creates environments to list them, and the error when it is lost."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

from tinkergym.errors import TinkerGymError

_START_SECONDS = 60.0
_END_SECONDS = 5.0
_MOST_BYTES = 1_000_000
"""Bytes of one response."""
_MOST_WAITING = 10
"""Bytes of unrequested output."""
# It must find the same packages as this process, but nothing in its working folder.
_PROGRAM = """
import json, sys
sys.path[:] = json.loads(sys.stdin.readline())
from tinkergym.registration.listing_child import main
main()
"""


class ProcessLostError(TinkerGymError):
    """The child hung, ended, or sent an invalid response."""


class ListingProcess:
    """A child that creates one environment after the other. Their output goes to stderr."""

    def __init__(self) -> None:
        """Start it.

        Raises:
            ProcessLostError: It did not start.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Its own process group, so that processes started by a pack end with it.
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            # An empty entry means the working directory, which is also the child's. Python skips entries that
            # are
            self._call([entry for entry in sys.path if isinstance(entry, str)], _START_SECONDS)
        except ProcessLostError:
            self.close()
            raise

    def ask(self, env_id: str, *, seconds: float) -> dict[str, Any]:
        """Return an environment's details.

        Raises:
            ProcessLostError: Creating it took too long, or ended the process.
        """
        answer = self._call(env_id, seconds)
        if not isinstance(answer, dict) or answer.get("id") != env_id:
            raise ProcessLostError("the process that creates it sent a response about something else")
        return answer

    def close(self) -> None:
        """End the process and the processes it started."""
        with suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def _call(self, question: Any, seconds: float) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=seconds)
        except OSError:
            line = b""
        except queue.Empty:
            raise ProcessLostError(f"it was not created within {seconds:g} s") from None
        if not line:
            raise ProcessLostError(self._how_it_ended())
        try:
            return json.loads(line)
        except (RecursionError, ValueError):
            return None

    def _how_it_ended(self) -> str:
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return "it cut the connection to the process that creates it"
        if code >= 0:
            return f"it ended the process that creates it, with exit code {code}"
        with suppress(ValueError):
            return f"it ended the process that creates it, by {signal.Signals(-code).name}"
        return f"it ended the process that creates it, by signal {-code}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as answers:
            # A pack can write here too, without a request.
            while self._lines.qsize() < _MOST_WAITING and (line := answers.readline(_MOST_BYTES)):
                self._lines.put(line)
        self._lines.put(b"")
