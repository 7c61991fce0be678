"""A service for the time of one command: used where one answers already, else started and stopped again.

Knows the command line of `tinkergym serve` and its `local.json`; nothing of what the service does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import IO

from tinkergym.errors import ServiceUnavailableError, TinkerGymError
from tinkergym.remote import discovery
from tinkergym.remote.api import Api
from tinkergym.remote.transport import Connection

START_SECONDS = 60.0
STOP_SECONDS = 30.0
_POLL_SECONDS = 0.1


@contextlib.contextmanager
def local_service(announce: Callable[[str], None]) -> Iterator[bool]:
    """Make sure that a service answers while the body runs; `tinkergym.Client()` finds it.

    Args:
        announce: Is told in a sentence what is started and stopped.

    Yields:
        Whether the service was started here, and so ends with the body.

    Raises:
        ServiceUnavailableError: the service ended at once or did not answer within a minute; the text carries
            what it said.
    """
    if url := _running():
        announce(f"A service is there already, {url}; using it.")
        yield False
        return
    announce("Starting the service (tinkergym serve) ...")
    # A file, not a pipe: nobody reads while the body runs, and a full pipe would stop the service.
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            # Any free port, since the usual one may be taken; the client reads it from local.json.
            [sys.executable, "-m", "tinkergym.cli.main", "serve", "--port", "0"],
            stdout=log,
            stderr=subprocess.STDOUT,
            # So that Ctrl-C reaches this process only, which then stops the service in good order.
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
                    "The service is stopped; its jobs and checkpoints are kept. "
                    "`make serve` (tinkergym serve) starts it again."
                )


def _running() -> str:
    """Return the URL of the service that clients find; empty when none answers."""
    if url := os.environ.get("TINKERGYM_URL"):
        return url  # The user named a service; whether it answers is for the client to say.
    try:
        address = discovery.find()
        with contextlib.closing(
            Connection(address.url, token=address.api_key, patience_seconds=0.0)
        ) as connection:
            Api(connection).health()
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
