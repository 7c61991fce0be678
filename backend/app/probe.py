"""Whether gateway and scheduler still work. A hanging process stays alive and would never be restarted."""

from __future__ import annotations

import http.client
import json
import queue
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, Generic, TypeVar

from backend.config import ServiceConfig
from backend.store.store import Store
from tinkergym.errors import TinkerGymError

T = TypeVar("T")

ANSWER_SECONDS = 2.0
HEALTH_SECONDS = 3.0
"""With a sampled token from each loaded model."""
_BETWEEN_SECONDS = 5.0
_AGAIN_SECONDS = 1.0
"""Interval after a failed attempt."""
_MOST_FAILURES = 5
"""Failed attempts in a row; a count, so that a suspended machine is not a reason."""
_SCHEDULER_LOOK_SECONDS = 5.0
_MOST_SILENT_LOOKS = 3
_START_SECONDS = 600.0
"""Time for a new gateway's first response, on a busy machine too. One that crashes is noticed at once."""


class GatewayProbe:
    """Probes the gateway regularly. Times are seconds on the supervisor's monotonic clock."""

    def __init__(self, answers: Callable[[], bool]) -> None:
        """`answers` probes once, with a timeout."""
        self._answers = answers
        self._next_look = self._started_at = 0.0
        self._heard_at = -1.0
        self._failures = 0

    def heard(self) -> None:
        """Note that it has responded to somebody else: from now on, silence is a reason."""
        self._heard_at, self._failures = time.monotonic(), 0

    def hangs(self, started_at: float, now: float) -> bool:
        """Whether the gateway started then hangs. Probes it if it is time to."""
        if started_at != self._started_at:
            self._started_at, self._failures = started_at, 0
        if now < self._next_look:
            return False
        if self._answers():
            self._heard_at, self._failures, self._next_look = now, 0, now + _BETWEEN_SECONDS
            return False
        self._next_look = now + _AGAIN_SECONDS
        self._failures += 1
        late = self._heard_at >= started_at or now - started_at >= _START_SECONDS
        return late and self._failures >= _MOST_FAILURES


class SchedulerProbe:
    """Checks the scheduler's heartbeats regularly. Times are as in `GatewayProbe`."""

    def __init__(self, silent: Callable[[], bool]) -> None:
        """`silent` says whether it gave none for too long, though it could have."""
        self._silent = silent
        self._next_look = 0.0
        self._failures = 0

    def hangs(self, _started_at: float, now: float) -> bool:
        """Whether it was silent several times in a row. Checks it if it is time to."""
        if now < self._next_look:
            return False
        self._next_look = now + _SCHEDULER_LOOK_SECONDS
        self._failures = self._failures + 1 if self._silent() else 0
        # A count, because after a suspend of the machine, or when the clock was set, it needs a moment.
        if self._failures < _MOST_SILENT_LOOKS:
            return False
        self._failures = 0
        return True


def scheduler_is_silent(config: ServiceConfig) -> bool:
    """Whether the scheduler wrote no heartbeat for two leases, while this process can write."""
    try:
        with closing(Store.open(config.store_url)) as store:
            service, now = store.service(), time.time()
            age = service.parts(now).get("scheduler")
            if age is None or age <= 2 * config.lease_seconds:
                return False
            # With a full disk or a locked database, another scheduler could not do more.
            service.touch_part("supervisor", now)
            return True
    except TinkerGymError:
        return False


class InBackground(Generic[T]):
    """A question that is asked in a thread, so that who asks goes on until there is an answer."""

    def __init__(self, ask: Callable[[], T | None]) -> None:
        """`ask` asks once, with a timeout; None is no answer."""
        self._ask = ask
        self._answers: queue.SimpleQueue[T | None] = queue.SimpleQueue()
        self._asked = False

    def answer(self, wait_seconds: float = 0.0) -> T | None:
        """Return an answer that has come since, and ask unless a question is open.

        Args:
            wait_seconds: How long to wait for one at most.
        """
        if not self._asked:
            try:
                threading.Thread(target=lambda: self._answers.put(self._ask()), daemon=True).start()
            except (RuntimeError, MemoryError):  # The system cannot start more threads.
                return None
            self._asked = True
        try:
            found = self._answers.get(block=wait_seconds > 0, timeout=wait_seconds or None)
        except queue.Empty:
            return None
        self._asked = False
        return found


def answers(url: str) -> bool:
    """Whether the address responds in time, with anything."""
    return _ask(url, "?sample=false", ANSWER_SECONDS) is not None


def health_of(url: str) -> dict[str, Any] | None:
    """Return the service's health; None if it does not respond at once."""
    try:
        return json.loads(_ask(url, "", HEALTH_SECONDS) or b"")  # type: ignore[no-any-return]
    except ValueError:
        return None


def _ask(url: str, query: str, seconds: float) -> bytes | None:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=seconds)
    try:
        connection.request("GET", f"/v1/health{query}")
        return connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
