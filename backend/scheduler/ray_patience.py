"""Waiting for Ray on a busy machine. Knows nothing of Ray itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

START_SECONDS = 600
"""Time for each part of Ray to start. What crashes is noticed at once; only slowness takes this long."""

SETTINGS = {
    "RAY_gcs_server_port_wait_time_s": str(START_SECONDS),
    # With Ray's 5 s, a raylet ends if the GCS starts slowly.
    "RAY_gcs_rpc_server_connect_timeout_s": str(START_SECONDS),
    "RAY_gcs_server_request_timeout_seconds": str(START_SECONDS),
    "RAY_worker_register_timeout_seconds": str(START_SECONDS),
    "RAY_agent_register_timeout_ms": str(START_SECONDS * 1000),
    # Ray ends a raylet that does not answer this often in a row, ten seconds each.
    "RAY_health_check_failure_threshold": "30",
}
"""Ray's time limits, as environment variables. Its own are a minute at most."""


def until_known(
    ask: Callable[[], Value],
    is_alive: Callable[[], bool],
    *,
    seconds: float = START_SECONDS,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> Value:
    """Ask until there is an answer.

    Args:
        ask: Raises RuntimeError as long as there is none.
        is_alive: Whether there can still be one.
        seconds: How long to ask.
        clock: Returns the time in seconds.
        pause: Waits that many seconds.

    Raises:
        RuntimeError: The last one of `ask`, when there can be no answer or the time is up.
    """
    ends_at = clock() + seconds
    while True:
        try:
            return ask()
        except RuntimeError:
            if not is_alive() or clock() >= ends_at:
                raise
        pause(0.1)
