"""A sandbox: Python code in a process of its own, with limits. Knows nothing of tools.

`isolation` says what keeps the code in:

- `namespaces` (Linux): no network, no other process, and no file but a read-only interpreter, the system's
  libraries and an empty folder in memory. Everything that was started dies with the process.
- `limits`: the same limits on time, memory and output, but only an audit hook of Python between the code and
  your files and network. It stops accidents. It does not stop code that means to get out.
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

from tinkergym.errors import EnvironmentInfrastructureError

Isolation = Literal["namespaces", "limits"]
Ending = Literal["finished", "raised", "timeout", "cpu", "memory", "killed"]

_LAUNCHER = Path(__file__).with_name("sandbox_launcher.py")
_GRACE_SECONDS = 20.0
"""What starting and ending the process may take on a busy machine, beside the time of the code."""
_ENDING_SECONDS = 5.0
_log = logging.getLogger(__name__)
_MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one run may use."""

    wall_seconds: float = 10.0
    cpu_seconds: int = 5
    memory_megabytes: int = 512
    """For all processes of the run together; of one process also its address space, the interpreter's 50
    included."""
    file_megabytes: int = 16
    """Of one file, and with namespaces of all files together."""
    processes: int = 16
    """Threads included; kept with namespaces only, without them new processes are refused."""
    output_characters: int = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How a run ended."""

    ending: Ending
    output: str
    """What the code wrote, its traceback included; cut in the middle if it is long."""
    isolation: Isolation


@cache
def best_isolation() -> Isolation:
    """Return the best that this machine offers; found out by trying, once."""
    report, output = _launch("", Limits(), "namespaces", site_packages=False)
    if report.get("status") == "exited" and report.get("exit") == 0:
        return "namespaces"
    why = report.get("reason") or output[-500:]
    _log.warning("no namespaces for sandboxed code, only limits (see docs/guides/tools.md): %s", why)
    return "limits"


def run_python(
    code: str,
    limits: Limits | None = None,
    *,
    isolation: Isolation | None = None,
    site_packages: bool = False,
) -> Run:
    """Run code in a fresh process and return what it wrote.

    Args:
        code: Python; the value of a last expression is shown as in an interpreter.
        limits: What it may use.
        isolation: What must keep it in; None for the best there is.
        site_packages: Whether it may import the packages of this environment.

    Raises:
        EnvironmentInfrastructureError: The process could not be started or lost, or `isolation` is not to be
            had on this machine.
    """
    limits = limits or Limits()
    wanted = isolation or best_isolation()
    report, output = _launch(code, limits, wanted, site_packages=site_packages)
    if report.get("status") == "unavailable":
        raise EnvironmentInfrastructureError(
            f"this machine gives sandboxed code no namespaces: {report.get('reason')}",
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
    return "cpu" if report["cpu_seconds"] >= limits.cpu_seconds - 0.5 else "killed"


def _launch(
    code: str, limits: Limits, isolation: Isolation, *, site_packages: bool
) -> tuple[dict[str, Any], str]:
    """Start the launcher, feed it, and return its report and the code's output."""
    folder = tempfile.mkdtemp(prefix="tinkergym-sandbox-")
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
            # As -I, but for PYTHONHASHSEED, which -I ignores: equal code prints equal sets.
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
        os.close(writer)
    assert process.stdin is not None
    assert process.stdout is not None
    output = _Output(limits.output_characters)
    try:
        # A thread of its own: a launcher that reads nothing must not hold us up.
        feeder = threading.Thread(target=_feed, args=(process.stdin, settings, source), daemon=True)
        feeder.start()
        report = _listen(process.stdout.fileno(), reader, output, limits.wall_seconds + _GRACE_SECONDS)
    finally:
        os.close(reader)
        # The launcher takes this for our end, and ends the code before itself.
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
    # Left open: the launcher takes its end for ours.
    with contextlib.suppress(OSError, ValueError):
        stdin.write(json.dumps(settings).encode() + b"\n" + source)
        stdin.flush()


def _listen(stdout: int, reader: int, output: _Output, seconds: float) -> dict[str, Any]:
    """Read until the report is whole and nothing more is written, or time is up."""
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
                        # A process that got away may hold the other end of the output for ever.
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
    """Keeps the beginning and the end of what comes."""

    def __init__(self, most_characters: int) -> None:
        self._half = most_characters // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._left_out = 0

    def add(self, data: bytes) -> None:
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


__all__ = ["Isolation", "Limits", "Run", "best_isolation", "run_python"]
