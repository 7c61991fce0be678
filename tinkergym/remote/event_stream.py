"""A job's log as server-sent events, resumed after a broken connection."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from tinkergym.errors import ServiceUnavailableError
from tinkergym.network.backoff import Backoff
from tinkergym.remote.transport import Connection, lines_of_chunks
from tinkergym.schema.events import Event, StateEvent

_log = logging.getLogger(__name__)

SILENCE_SECONDS = 35.0
"""The service sends a comment every 10 s; after three missing ones the connection counts as dead."""

_AWAY_IS_NEWS = 2
"""Failures in a row after which a warning is logged: the connection broke, and one reconnect failed."""


def follow(
    connection: Connection,
    job_id: str,
    *,
    after: int = 0,
    patience_seconds: float = 300.0,
    check: Callable[[], None] = lambda: None,
    sleep: Callable[[float], object] = time.sleep,
) -> Iterator[Event]:
    """Yield the events of a job after number `after`, each once, until its final state.

    If the service is lost, this reconnects. If that does not work at once, it logs one warning.

    Args:
        connection: The connection to the gateway.
        job_id: The job.
        after: Number of the last event already seen; 0 starts at the beginning.
        patience_seconds: How long to try to reconnect.
        check: Called whenever something arrives, including heartbeats. An exception from it ends the
            iteration.
        sleep: Waits between attempts.

    Raises:
        ServiceUnreachableError: The service did not return within `patience_seconds`.
    """
    backoff = Backoff(patience_seconds=patience_seconds, sleep=sleep)
    waits = backoff.waits()
    away = 0
    while True:
        try:
            for event in _connect(connection, job_id, after, check):
                if event.seq <= after:
                    continue
                after, waits, away = event.seq, backoff.waits(), 0
                yield event
                if isinstance(event.body, StateEvent) and event.body.state.final:
                    return
        except ServiceUnavailableError as error:
            away += 1
            if away == _AWAY_IS_NEWS:
                _log.warning(
                    "%s; trying to reconnect for up to %s. Ctrl-C stops this, not the job",
                    error.message,
                    _words(patience_seconds),
                )
            if next(waits, None) is None:
                raise
        else:
            # The stream ended without a final state: the gateway is shutting down normally.
            if next(waits, None) is None:
                raise ServiceUnavailableError(
                    f"the service ended the event stream of {job_id} before the job ended",
                    hint=f"look at it with `tinkergym jobs show {job_id}`",
                )


def _words(seconds: float) -> str:
    return f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"


def _connect(connection: Connection, job_id: str, after: int, check: Callable[[], None]) -> Iterator[Event]:
    headers = {"Accept": "text/event-stream"}
    if after:
        headers["Last-Event-ID"] = str(after)
    with connection.stream(
        "GET", f"/v1/jobs/{job_id}/events", headers=headers, timeout_seconds=SILENCE_SECONDS
    ) as chunks:
        for data in _fields(chunks, check):
            yield Event.model_validate_json(data)


def _fields(chunks: Iterator[bytes], check: Callable[[], None]) -> Iterator[bytes]:
    """Return the `data` of each server-sent event. A truncated event is dropped."""
    data = b""
    for lines in lines_of_chunks(chunks):
        check()
        for line in lines:
            text = line.rstrip(b"\r")
            if text.startswith(b"data:"):
                data += text.removeprefix(b"data:").removeprefix(b" ")
            elif not text and data:
                yield data
                data = b""
