"""Whether the gateway still answers: one that hangs lives on, and would never be started again."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from typing import Any

ANSWER_SECONDS = 2.0
_BETWEEN_SECONDS = 1.0
_MOST_FAILURES = 5
"""Failed attempts in a row; of a count, so that a machine that slept is no reason."""
_START_SECONDS = 60.0
"""For a new gateway to answer for the first time."""


class GatewayProbe:
    """Asks the gateway now and then. Times are seconds on the supervisor's monotonic clock."""

    def __init__(self, answers: Callable[[], bool]) -> None:
        """`answers` asks once, and gives up after a while."""
        self._answers = answers
        self._next_look = self._started_at = 0.0
        self._answered = False
        self._failures = 0

    def hangs(self, started_at: float, now: float) -> bool:
        """Whether the gateway that was started then hangs. It is asked if it is time to."""
        if started_at != self._started_at:
            self._started_at, self._answered, self._failures = started_at, False, 0
        if now < self._next_look:
            return False
        self._next_look = now + _BETWEEN_SECONDS
        if self._answers():
            self._answered, self._failures = True, 0
            return False
        self._failures += 1
        late = self._answered or now - started_at >= _START_SECONDS
        return late and self._failures >= _MOST_FAILURES


def answers(url: str) -> bool:
    """Whether anything answers there in time, whatever it says."""
    return _ask(url, ANSWER_SECONDS) is not None


def health_of(url: str) -> dict[str, Any] | None:
    """Return what the service says of its health; None if it does not answer at once."""
    try:
        return json.loads(_ask(url, 0.3) or b"")  # type: ignore[no-any-return]
    except ValueError:
        return None


def _ask(url: str, seconds: float) -> bytes | None:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=seconds)
    try:
        connection.request("GET", "/v1/health")
        return connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
