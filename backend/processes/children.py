"""Child processes that end with their parent, or can be found by a mark; those that answer one request.

`python -m backend.processes.children PROGRAM ...` runs a Python program that ends with its parent, for
programs that others start, here Ray. It runs in this interpreter, because a second one would start later.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import psutil

MARK_VARIABLE = "TINKERGYM_SERVICE_MARK"
"""Environment variable inherited by all processes of one service: a process with its mark is ours to end."""

_PR_SET_PDEATHSIG = 1
_NICENESS = 10
"""How much nicer (0 to 19) processes that play for one tenant are than the others."""
# Looked up now: between fork and exec there is no time to load a library.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None

_KILL_SECONDS = 5.0


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent is gone, even by `kill -9` (Linux only)."""
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def stand_back() -> None:
    """Permanently lower the priority of this process and its children below the service's other processes.

    On Linux only that of this thread, and of the threads and processes that it starts.
    """
    os.nice(_NICENESS)
    # Linux may schedule sessions as groups, and weigh priorities only within a group. It has its own session,
    # otherwise this would affect others.
    if os.getsid(0) == os.getpid():
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(_NICENESS))


def start(
    command: Sequence[str],
    *,
    mark: str,
    output: int,
    environment: Mapping[str, str],
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a marked child in its own session, which prints to the descriptor `output`.

    Call it from the main thread: the kernel treats the end of the starting thread as the parent's.
    """
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        # Unbuffered: what a child printed last must be in its log even if it is killed.
        env={**os.environ, **environment, MARK_VARIABLE: mark, "PYTHONUNBUFFERED": "1"},
        pass_fds=pass_fds,
        # A Ctrl-C in the terminal is for the parent, which stops its children cleanly.
        start_new_session=True,
        preexec_fn=die_with_parent,  # noqa: PLW1509 - one call of the kernel, which needs no lock
    )


def marked(prefix: str) -> list[psutil.Process]:
    """Return all running processes whose mark has this prefix, including descendants; never this one."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if (
                process.pid != os.getpid()
                and process.status() != psutil.STATUS_ZOMBIE
                and process.environ().get(MARK_VARIABLE, "").startswith(prefix)
            ):
                found.append(process)
    return found


def kill_marked(prefix: str) -> int:
    """Kill all processes with such a mark, within some seconds; return how many there were."""
    assert prefix
    killed: set[int] = set()
    deadline = time.monotonic() + _KILL_SECONDS
    # Repeated, because a process may have started another meanwhile.
    while (left := marked(prefix)) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.Error):
                process.kill()
                killed.add(process.pid)
        psutil.wait_procs(left, timeout=0.5)
    return len(killed)


def freeze_startup_objects() -> None:
    """Exclude objects created during startup from garbage collection.

    A full collection took 0.4 s in a pool, every ten steps of a game, and stopped all other threads; in the
    gateway, collections took a twelfth of its computing.
    """
    gc.collect()  # Existing garbage would stay permanently.
    gc.freeze()


@contextmanager
def one_question() -> Iterator[tuple[dict[str, Any], TextIO]]:
    """Yield the JSON object of the standard input and where the answers go; the process ends with the block.

    Responses go to the original standard output; anything printed from now on goes to stderr.
    """
    die_with_parent()
    stand_back()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with answers:
        yield json.load(sys.stdin), answers
    # Not by returning: a thread of an environment could keep the process alive and the caller waiting.
    os._exit(0)


def waited_seconds(pid: int) -> float:
    """Return how long the main thread of a process, or of one of its children, was ready but had no core.

    The longest of them; 0 if the system does not tell, as macOS.
    """
    pids = [pid]
    with suppress(psutil.Error):
        pids += [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return max(map(_waited, pids))


def _waited(pid: int) -> float:
    try:
        # Nanoseconds on a core and waiting for one, and how often it got one.
        return int(Path(f"/proc/{pid}/schedstat").read_text("ascii").split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def main() -> None:
    """Run the program of the command line as `python PROGRAM ...` does."""
    die_with_parent()
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
