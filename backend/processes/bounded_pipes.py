"""Send one request to a child that may print without end."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from typing import IO, cast

KEPT_BYTES = 2**20
"""Bytes kept from the end of each of the child's streams."""

_CHUNK_BYTES = 2**16


def communicate(child: subprocess.Popen[bytes], question: bytes, seconds: float) -> tuple[bytes, bytes]:
    """Like `child.communicate(question, timeout=seconds)`, but keep only the end of the child's output.

    Raises:
        TimeoutExpired: The child did not close its streams in time; it still runs.
    """
    assert child.stdin and child.stdout and child.stderr
    deadline = time.monotonic() + seconds
    printed: dict[object, bytearray] = {child.stdout: bytearray(), child.stderr: bytearray()}
    left = memoryview(question)
    os.set_blocking(child.stdin.fileno(), False)
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdin, selectors.EVENT_WRITE)
        for stream in (child.stdout, child.stderr):
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(child.args, seconds)
            for key, _ in selector.select(deadline - time.monotonic()):
                if key.fileobj is child.stdin:
                    left = left[_written(key.fd, left) :]
                    done = not left
                else:
                    done = not _read(key.fd, printed[key.fileobj])
                if done:
                    selector.unregister(key.fileobj)
                    cast(IO[bytes], key.fileobj).close()
    child.wait(max(0.0, deadline - time.monotonic()))
    return bytes(printed[child.stdout]), bytes(printed[child.stderr])


def _written(descriptor: int, data: memoryview) -> int:
    try:
        return os.write(descriptor, data[:_CHUNK_BYTES])
    except BlockingIOError:
        return 0
    except BrokenPipeError:  # It ended without reading.
        return len(data)


def _read(descriptor: int, kept: bytearray) -> int:
    data = os.read(descriptor, _CHUNK_BYTES)
    kept += data
    del kept[:-KEPT_BYTES]
    return len(data)
