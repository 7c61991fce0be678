"""`python -m backend.processes.guardian MARK FD`: outlives its parent and ends what it left behind.

Its parent, the supervisor or the scheduler's host, holds the other end of the pipe FD. When the parent is
gone, for any reason, the pipe ends, and every process with the mark is killed, including Ray's, which the
kernel does not tie to the parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from backend.processes.children import kill_marked
from backend.processes.ends import GUARDIAN_SECONDS


@contextmanager
def guarded(mark: str) -> Iterator[None]:
    """Start a guardian that cleans up if this process is killed."""
    reading, writing = os.pipe()
    guardian = subprocess.Popen(
        [sys.executable, "-m", "backend.processes.guardian", mark, str(reading)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(reading,),
        start_new_session=True,
    )
    os.close(reading)
    try:
        yield
    finally:
        os.close(writing)
        with suppress(subprocess.TimeoutExpired):
            guardian.wait(timeout=GUARDIAN_SECONDS)


def main() -> None:
    """Wait and clean up."""
    # Only the parent's end counts, not the signals that end it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    mark, descriptor = sys.argv[1], int(sys.argv[2])
    # Nothing is ever written: it returns when the parent is gone.
    while os.read(descriptor, 1):
        pass
    kill_marked(mark)


if __name__ == "__main__":
    main()
