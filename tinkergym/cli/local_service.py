"""A service for the duration of one command: uses a running one, else starts one and stops it again.

Knows the command line of `tinkergym serve` and its `local.json`, not what the service does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from tinkergym.errors import ServiceUnavailableError, TinkerGymError
from tinkergym.remote import discovery
from tinkergym.remote.api import Api
from tinkergym.remote.transport import Connection

START_SECONDS = 600.0
STOP_SECONDS = 30.0
_POLL_SECONDS = 0.1


@contextlib.contextmanager
def local_service(announce: Callable[[str], None], settings: Sequence[str] = ()) -> Iterator[bool]:
    """Make sure that a service runs while the body runs, and that `tinkergym.Client()` finds it.

    Args:
        announce: Called with a sentence about what is started and stopped.
        settings: `key=value` pairs for `--set`, if it is started here.

    Yields:
        Whether the service was started here, and is stopped after the body.

    Raises:
        ServiceUnavailableError: The service ended at once or did not respond in ten minutes. The message has
            its output.
    """
    if url := _running():
        announce(f"Using the service that is already running at {url}.")
        yield False
        return
    announce("Starting the service (tinkergym serve) ...")
    options = [word for setting in settings for word in ("--set", setting)]
    # A file, not a pipe: nothing reads while the body runs, and a full pipe would block the service.
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            # Use any free port, because the usual one may be taken; the client reads it from local.json.
            [sys.executable, "-m", "tinkergym.cli.main", "serve", "--port", "0", *options],
            stdout=log,
            stderr=subprocess.STDOUT,
            # So that Ctrl-C only reaches this process, which then stops the service cleanly.
            start_new_session=True,
        )
        answered = False
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _running():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise ServiceUnavailableError("the service did not start", hint=_said(log))
                time.sleep(_POLL_SECONDS)
            answered = True
            yield True
        finally:
            _stop(process)
            if answered:
                announce(
                    "The service has stopped; its jobs and checkpoints are stored. `make serve` (tinkergym "
                    "serve) starts it again."
                )


def _running() -> str:
    """Return the URL of the service that clients find; empty if none responds."""
    if url := os.environ.get("TINKERGYM_URL"):
        return url  # The user named a service; the client reports whether it responds.
    try:
        address = discovery.find()
        with contextlib.closing(
            Connection(address.url, token=address.api_key, patience_seconds=0.0)
        ) as connection:
            Api(connection).health(sample=False)
    except TinkerGymError:
        return ""
    return address.url


def _said(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode(errors="replace").strip()[-2000:]


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
