"""A sandbox: Python code in its own process, with limits. Independent of tools.

`isolation` is one of:

- `namespaces` (Linux): no network, no other process, and no file but a read-only interpreter, the system's
  libraries and an empty folder in memory. All processes that it started are killed with it.
- `limits`: the same limits on time, memory and output, but only Python's audit hook between the code and your
  files and network. It stops accidents. It does not stop code that tries to escape.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from tinkergym.errors import (
    EnvironmentInfrastructureError,
    InvalidToolError,
    ServiceUnavailableError,
)
from tinkergym.tools.sandbox.isolation_rule import Isolation, required_isolation

Ending = Literal["finished", "raised", "timeout", "cpu", "memory", "killed"]

FOLDER_PREFIX = "tinkergym-sandbox-"
"""Of the temporary folders of runs; the id of the process that made it follows."""
_LAUNCHER = Path(__file__).with_name("launcher.py")
_GRACE_SECONDS = 20.0
"""Extra time for starting and ending the process on a busy machine."""
_ENDING_SECONDS = 5.0
_log = logging.getLogger(__name__)
_MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one run."""

    wall_seconds: float = 10.0
    cpu_seconds: int = 5
    memory_megabytes: int = 512
    """Of all processes of the run together; also the address space of each process, including the
    interpreter's 50."""
    file_megabytes: int = 16
    """Of one file, and with namespaces of all files together."""
    processes: int = 16
    """Including threads. Only with namespaces; without them new processes are refused."""
    output_characters: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The result of a run."""

    ending: Ending
    output: str
    """The code's output, including its traceback; cut in the middle if it is long."""
    isolation: Isolation


@cache
def missing_namespaces() -> str:
    """Return why this machine has no namespaces for sandboxed code, or "" if it has them. Tried once.

    Raises:
        ServiceUnavailableError: The machine was too busy to tell.
    """
    report, output = _launch("", Limits(wall_seconds=60.0), "namespaces", site_packages=False)
    if report.get("status") == "exited" and report.get("exit") == 0:
        return ""
    if report.get("status") == "timeout":
        raise ServiceUnavailableError("the sandbox did not start within a minute", hint="try again")
    return report.get("reason") or output[-500:] or "the sandbox ended without a report"


@cache
def best_isolation() -> Isolation:
    """Return the best isolation that this machine offers; tried once."""
    why = missing_namespaces()
    if not why:
        return "namespaces"
    _log.warning(
        "namespaces are not available for sandboxed code, only limits (see docs/guides/tools.md): %s", why
    )
    return "limits"


def isolation_for(asked: Isolation | None) -> Isolation:
    """Return the isolation for code in this process.

    Raises:
        InvalidToolError: The service to which this process belongs does not run it.
        ServiceUnavailableError: The machine was too busy to tell.
    """
    return required_isolation(asked, missing_namespaces, best_isolation)


def run_python(
    code: str,
    limits: Limits | None = None,
    *,
    isolation: Isolation | None = None,
    site_packages: bool = False,
) -> Run:
    """Run code in a new process and return its output.

    Args:
        code: Python; the value of a last expression is shown as in an interpreter.
        limits: Its limits.
        isolation: The required isolation; None uses the best available. A service may require more.
        site_packages: Whether it may import the packages of this environment.

    Raises:
        EnvironmentInfrastructureError: The process could not be started or was lost, or the isolation is not
            available on this machine.
    """
    limits = limits or Limits()
    try:
        wanted = isolation_for(isolation)
    except (InvalidToolError, ServiceUnavailableError) as error:
        raise EnvironmentInfrastructureError(error.message, hint=error.hint) from None
    report, output = _launch(code, limits, wanted, site_packages=site_packages)
    if report.get("status") == "unavailable":
        raise EnvironmentInfrastructureError(
            f"namespaces are not available for sandboxed code on this machine: {report.get('reason')}",
            hint="allow user namespaces, or accept less with isolation='limits'",
        )
    if report.get("status") not in {"exited", "timeout", "memory"}:
        raise EnvironmentInfrastructureError(
            f"the sandbox failed: {output[-1000:] or 'it ended without a report'}",
            hint="the machine may be out of memory or processes",
        )
    return Run(ending=_ending(report, limits), output=output, isolation=wanted)


def _ending(report: dict[str, Any], limits: Limits) -> Ending:
    if report["status"] in {"timeout", "memory"}:
        ending: Ending = report["status"]
        return ending
    if report["exit"] >= 0:
        return "raised" if report["exit"] else "finished"
    # The signal does not say which limit sent it, and the kernel's two counts of its time differ a little.
    return "cpu" if report["cpu_seconds"] >= limits.cpu_seconds - 0.5 else "killed"


def _launch(
    code: str, limits: Limits, isolation: Isolation, *, site_packages: bool
) -> tuple[dict[str, Any], str]:
    """Start the launcher, send its input, and return its report and the code's output."""
    folder = tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-")
    try:
        return _talk(code, limits, isolation, folder, site_packages)
    except OSError as error:
        raise EnvironmentInfrastructureError(f"the sandbox cannot be started: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _talk(
    code: str, limits: Limits, isolation: Isolation, folder: str, site_packages: bool
) -> tuple[dict[str, Any], str]:
    reader, writer = os.pipe()
    source = code.encode("utf-8", "replace")
    settings = {
        "report": writer,
        "folder": folder,
        "isolation": isolation,
        "paths": _readable_paths(site_packages),
        "code_bytes": len(source),
        "wall_seconds": limits.wall_seconds,
        "cpu_seconds": limits.cpu_seconds,
        "memory_bytes": limits.memory_megabytes * _MEGABYTE,
        "file_bytes": limits.file_megabytes * _MEGABYTE,
        "processes": limits.processes,
    }
    try:
        process = subprocess.Popen(
            # Like -I, which ignores PYTHONHASHSEED: the same code prints sets in the same order.
            [
                sys.executable,
                "-s",
                "-P",
                "-B",
                "-X",
                "utf8",
                *([] if site_packages else ["-S"]),
                str(_LAUNCHER),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[writer],
            cwd=folder,
            env={"PYTHONHASHSEED": "0", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
    finally:
        os.close(writer)  # While this copy is open, the report has no end.
    assert process.stdin is not None
    assert process.stdout is not None
    output = _Output(limits.output_characters)
    try:
        # In a thread: a launcher that does not read must not block us.
        feeder = threading.Thread(target=_feed, args=(process.stdin, settings, source), daemon=True)
        feeder.start()
        report = _listen(process.stdout.fileno(), reader, output, limits.wall_seconds + _GRACE_SECONDS)
    finally:
        os.close(reader)
        # The launcher takes this as our end, and ends the code before itself.
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
    return report, output.text()


def _feed(stdin: Any, settings: dict[str, Any], source: bytes) -> None:
    # Left open: the launcher takes its end as ours.
    with contextlib.suppress(OSError, ValueError):
        stdin.write(json.dumps(settings).encode() + b"\n" + source)
        stdin.flush()


def _listen(stdout: int, reader: int, output: _Output, seconds: float) -> dict[str, Any]:
    """Read until the report is complete and the output has ended, or the time is up."""
    ends_at = time.monotonic() + seconds
    report = b""
    with selectors.DefaultSelector() as selector:
        selector.register(stdout, selectors.EVENT_READ)
        selector.register(reader, selectors.EVENT_READ)
        while selector.get_map() and (left := ends_at - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                data = os.read(key.fd, 65536)
                if not data:
                    selector.unregister(key.fd)
                    if key.fd == reader:
                        # A process that escaped may keep the other end of the output open forever.
                        ends_at = min(ends_at, time.monotonic() + 1.0)
                elif key.fd == reader:
                    report += data
                else:
                    output.add(data)
    try:
        found: dict[str, Any] = json.loads(report)
    except ValueError:
        return {}
    return found


class _Output:
    """Keeps the beginning and the end of the input."""

    def __init__(self, most_characters: int) -> None:
        self._half = most_characters // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._left_out = 0

    def add(self, data: bytes) -> None:
        # A character has up to four bytes.
        room = max(0, 4 * self._half - len(self._head))
        self._head += data[:room]
        self._tail += data[room:]
        too_many = len(self._tail) - 4 * self._half
        if too_many > 0:
            self._left_out += too_many
            del self._tail[:too_many]

    def text(self) -> str:
        if not self._left_out:
            text = (self._head + self._tail).decode("utf-8", "replace")
            left_out = len(text) - 2 * self._half
            if left_out <= 0:
                return text
            return f"{text[: self._half]}\n... {left_out} characters left out ...\n{text[-self._half :]}"
        head, tail = self._head.decode("utf-8", "replace"), self._tail.decode("utf-8", "replace")
        return f"{head[: self._half]}\n... output left out ...\n{tail[-self._half :]}"


def _readable_paths(site_packages: bool) -> list[str]:
    """Return the folders that the interpreter needs."""
    paths = [sys.base_prefix, sys.base_exec_prefix]
    if site_packages:
        paths += [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    return list(dict.fromkeys(os.path.realpath(path) for path in paths))
