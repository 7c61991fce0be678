"""A pool's process that is started before Ray: it imports what a pool needs while Ray itself still starts.

    python -m backend.scheduler.early_worker wait SOCKET MODULE   imports the module and waits
    python -m backend.scheduler.early_worker run SOCKET PROGRAM   runs `python PROGRAM` in the one that waits

The imports take longer than anything else when the service starts or recovers. Ray starts its workers with a
command of our choice: `run` is that command. It passes the program to the waiting process, and lives as long
as that one. If none is waiting, it runs the program itself, as Ray would have.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import shlex
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from backend.processes.children import die_with_parent
from backend.processes.quick_start import without_collections

_TAKEN = b"taken"
_OOM_SCORE = Path("/proc/self/oom_score_adj")


def start(path: Path, module: str = "backend.workers.pool_worker") -> subprocess.Popen[bytes] | None:
    """Start a process that waits on the socket `path` and ends with this one; None except on Linux."""
    if sys.platform != "linux":
        return None
    return subprocess.Popen(
        [sys.executable, "-m", __name__, "wait", str(path), module], stdin=subprocess.DEVNULL
    )


def python_in(path: Path) -> str | None:
    """Return the command for Ray to run instead of Python; None if no process waits there."""
    return shlex.join([sys.executable, "-m", __name__, "run", str(path)]) if path.exists() else None


def _wait(path: Path, module: str) -> None:
    die_with_parent()
    unready = path.with_suffix(".new")
    unready.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(unready))
        listener.listen()
        # Renamed once it listens: a process that finds the path can connect.
        unready.replace(path)
        with without_collections():  # They took a quarter of the time.
            importlib.import_module(module)
        connection, _ = listener.accept()
        # It serves once: a later pool finds no path, and Ray starts its Python as usual.
        path.unlink()
    # Open until this process ends, which tells the other one.
    with connection, connection.makefile() as lines:
        handed = json.loads(lines.readline())
        connection.sendall(_TAKEN)
        os.environ.clear()
        os.environ.update(handed["environment"])
        # What Ray sets for its workers from outside. The kernel keeps a priority per thread.
        for thread in Path("/proc/self/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), handed["nice"])
        with suppress(OSError):
            _OOM_SCORE.write_text(handed["oom_score"])
        sys.argv = handed["arguments"]
        runpy.run_path(sys.argv[0], run_name="__main__")


def _run(path: Path, arguments: list[str]) -> None:
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        handed = {
            "arguments": arguments,
            "environment": dict(os.environ),
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "oom_score": _OOM_SCORE.read_text(),
        }
        connection.sendall(json.dumps(handed).encode() + b"\n")
        if connection.recv(len(_TAKEN)) == _TAKEN:
            # Nothing is sent: this returns when that process has ended, and Ray sees the end of its worker.
            connection.recv(1)
            return
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["wait", path, module]:
            _wait(Path(path), module)
        case ["run", path, *arguments]:
            _run(Path(path), arguments)
