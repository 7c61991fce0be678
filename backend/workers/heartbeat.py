"""The heartbeat of a pool worker: renews its leases, shows that it is alive, and passes on requests."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from backend.errors import LeaseLostError
from backend.jobs.job_control import JobControl
from backend.store.store import JobLease, ServiceStore

_log = logging.getLogger(__name__)
_STOP_LOOK_SECONDS = 0.5


@dataclass(slots=True)
class Pulse:
    """A running job as the heartbeat sees it."""

    lease: JobLease
    control: JobControl


class Heartbeat:
    """Runs in its own thread, so that a long computation does not cost the lease."""

    def __init__(
        self,
        store: ServiceStore,
        jobs: Callable[[], Mapping[str, Pulse]],
        *,
        show_life: Callable[[float], object],
        lease_seconds: float,
        heartbeat_seconds: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Renew the leases of `jobs()`, which may change; `show_life` receives the time at each heartbeat."""
        self._store, self._jobs, self._show_life, self._clock = store, jobs, show_life, clock
        self._lease_seconds, self._heartbeat_seconds = lease_seconds, heartbeat_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start."""
        self._thread.start()

    def close(self) -> None:
        """Stop; leases are no longer renewed."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        # Not by the clock used in leases: if that is set back, there would be no heartbeat for as long.
        next_beat = 0.0
        while not self._stop.wait(min(_STOP_LOOK_SECONDS, self._heartbeat_seconds / 2)):
            beat = time.monotonic() >= next_beat
            if beat:
                next_beat = time.monotonic() + self._heartbeat_seconds
                self._quietly(lambda: self._show_life(self._clock()))
            for pulse in list(self._jobs().values()):
                if beat:
                    self._renew(pulse)
                self._look_for_stop_request(pulse)

    def _renew(self, pulse: Pulse) -> None:
        try:
            pulse.lease = self._store.renew(pulse.lease, self._lease_seconds, self._clock())
        except LeaseLostError as error:
            pulse.control.mark_lease_lost(error)
        except Exception as error:
            # The store may be busy for a moment; it is too late only when the lease has expired.
            _log.warning("the lease of %s was not renewed: %s", pulse.lease.job_id, error)
            if self._clock() >= pulse.lease.expires_at:
                pulse.control.mark_lease_lost(
                    LeaseLostError(f"the lease of {pulse.lease.job_id} ran out: {error}")
                )

    def _look_for_stop_request(self, pulse: Pulse) -> None:
        def look() -> None:
            request = self._store.stop_request(pulse.lease.job_id, self._clock())
            if request.cancel:
                pulse.control.cancel()
            pulse.control.pause(request.pause, asked=request.asked)

        self._quietly(look)

    def _quietly(self, act: Callable[[], object]) -> None:
        try:
            act()
        except Exception as error:
            _log.warning("heartbeat: %s", error)
