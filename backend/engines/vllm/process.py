"""The vLLM host as a child process: starting it, messages, and killing it with its children."""

from __future__ import annotations

import json
import os
import queue
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from backend.processes.bounded_log import BoundedLog
from tinkergym.errors import InvalidRequestError

Message = dict[str, Any]
SEE_THE_LOG = "see logs/vllm.log in the service's data_dir"
_LAST_WORDS_SECONDS = 1.0
"""How long its last output is waited for: a descendant that got away may keep the pipe open."""
HOST = (sys.executable, "-m", "backend.engines.vllm.host")
"""The command that starts the vLLM process."""
_ERROR = re.compile(r"(?<!\S)[\w.]+(Error|Exception): .+")
_WRAPPERS = (
    "EngineDeadError",
    "Engine core initialization failed",
    "failed to be inspected",
    "Error raised in subprocess",
)
"""Texts of vLLM errors that only refer to an earlier error."""


class VllmProcess:
    """One run of the host."""

    def __init__(self, command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> None:
        """Start the process, with a socket's number as its last argument; it reports when it is ready.

        Raises:
            OSError: The log cannot be written, or there is no memory for a process.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs, BoundedLog(log) as self._output:
                self._process = subprocess.Popen(
                    [*command, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=self._output.descriptor,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **environment},
                    pass_fds=[theirs.fileno()],
                    # A separate group, so that it can be killed with vLLM's processes, and receives no
                    # Ctrl-C.
                    start_new_session=True,
                )
        except OSError:
            ours.close()
            raise
        self._socket = ours
        self._received = b""
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        # A hung host reads nothing; only this thread may wait for it.
        self._writer = threading.Thread(target=self._write, name="vllm-writer", daemon=True)
        self._writer.start()

    @property
    def pid(self) -> int:
        """The host's process id; vLLM's engine core is its child."""
        return self._process.pid

    def send(self, message: Message) -> None:
        """Queue a message; it is lost if the process has ended."""
        self._outbox.put(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    def receive(self, seconds: float) -> list[Message] | None:
        """Return received messages, waiting up to `seconds` for the first; None if the process has ended."""
        try:
            if not select.select([self._socket], [], [], seconds)[0]:
                return []
            data = self._socket.recv(1 << 20)
        except OSError:
            return None
        if not data:
            return None
        *lines, self._received = (self._received + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def hang_up(self) -> None:
        """Close the connection for both sides; `receive` then returns None."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Kill the process and its children, and wait for them; no clean shutdown is needed."""
        # First: a writer that is blocked in `sendall` gets an error, and `join` below returns.
        self.hang_up()
        # The group outlives its leader, and its id is not reused before its last process is gone.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.join(_LAST_WORDS_SECONDS)
        self._outbox.put(None)
        self._writer.join()
        self._socket.close()

    def _write(self) -> None:
        while (line := self._outbox.get()) is not None:
            with suppress(OSError):
                self._socket.sendall(line)


def not_started(model: Path, log: Path, said: str) -> InvalidRequestError:
    """Return the error for a vLLM that does not start, with what it said, or else the end of its log."""
    with suppress(OSError):
        said = said or reason_in(log.read_text(encoding="utf-8", errors="replace"))
    return InvalidRequestError(
        f"vLLM does not start with the model {str(model)!r}: {said or 'it printed no error'}",
        hint=f"{SEE_THE_LOG}; docs/operating/engines.md lists what engine=transformers supports",
        field="engine",
    )


def reason_in(log: str) -> str:
    """Return why vLLM did not start: from the end of its log, the error that later ones wrap."""
    lines = log.splitlines()
    errors = []
    for line, following in zip(lines, [*lines[1:], ""], strict=False):
        if found := _ERROR.search(line):
            # Pydantic says what is wrong on the line after.
            more = f" {following.strip()}" if "ValidationError" in found[0] else ""
            errors.append(found[0].strip() + more)
    real = [error for error in errors if not any(wrapper in error for wrapper in _WRAPPERS)]
    for telling in (real, errors, [line for line in lines if "Error" in line], lines):
        if telling:
            return telling[-1].strip()[:500]
    return ""
