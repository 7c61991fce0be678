"""A server that speaks S3 for this process, where moto is installed; it may hang, or refuse connections.

`python -m tests.backend.s3_server ADDRESS PORT` is the server: with each line that it reads, it refuses
connections, or accepts them again.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Self

import httpx
import pytest

from backend.store.object_blobs import ObjectBlobs
from tests.leftovers import belonging_to

HAS_S3 = bool(find_spec("s3fs") and find_spec("moto"))
"""As in the environment of `make test-all PARTS=s3`."""
NEEDS_S3 = "needs s3fs and moto: make test-all PARTS=s3"
BUCKET = "s3://blobs"


@pytest.fixture(scope="session")
def s3_server():
    """Start a server for the tests of this process, and let them use it."""
    if not HAS_S3:
        pytest.skip(NEEDS_S3)
    with S3Server.running() as server:
        yield server


class S3Server:
    """Runs until `stop`, or until this process ends, however it ends. What it stores is in its memory."""

    @classmethod
    @contextmanager
    def running(cls, address: str = "127.0.0.1") -> Iterator[Self]:
        """Start one, which this process and those that it starts use until the block ends."""
        server = cls(address)
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {"AWS_ENDPOINT_URL": server.url, **keys}.items():
                patch.setenv(name, value)
            try:
                with belonging_to("session"):  # fsspec's thread and its loop, which stay.
                    assert ObjectBlobs(BUCKET, None).files() == []
                yield server
            finally:
                server.stop()

    def __init__(self, address: str) -> None:
        """Listen at an address of this machine, with an empty bucket."""
        with socket.socket() as free:
            free.bind((address, 0))
            port = free.getsockname()[1]
        self.url = f"http://{address}:{port}"
        self._server = subprocess.Popen(
            [sys.executable, "-m", __name__, address, str(port)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._hear()
        httpx.put(f"{self.url}/{BUCKET.removeprefix('s3://')}").raise_for_status()

    def freeze(self) -> None:
        """Let it accept connections, and say nothing."""
        self._server.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        self._server.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Let it refuse connections."""
        self._turn()

    def open(self) -> None:
        """Let it accept connections again."""
        self._turn()

    def stop(self) -> None:
        """End it, and forget what it stored."""
        self._server.kill()
        self._server.communicate()

    def _turn(self) -> None:
        self._server.stdin.write("\n")
        self._server.stdin.flush()
        self._hear()

    def _hear(self) -> None:
        assert self._server.stdout.readline(), "moto ended"


def main(address: str, port: str) -> None:
    """Serve until the standard input ends."""
    from moto.server import ThreadedMotoServer

    said, sys.stdout = sys.stdout, sys.stderr  # What it logs is no answer.
    server, runs = ThreadedMotoServer(address, int(port), verbose=False), False
    while True:
        server.stop() if runs else server.start()
        runs = not runs
        print(file=said, flush=True)
        if not sys.stdin.readline():
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
