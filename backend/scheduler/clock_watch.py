"""Detects that the clock was set or the machine was suspended, before all other processes seem silent.

Pure bookkeeping: both clocks' times arrive as arguments.
"""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)


class ClockWatch:
    """Compares the wall clock with the monotonic clock from tick to tick.

    After a jump, `patient` holds for a whole lease: the others need that time to send a heartbeat. A tick
    that took long because the machine or the database was busy is no jump: the others continued meanwhile.
    """

    def __init__(self, lease_seconds: float, *, now: float, monotonic: float) -> None:
        self._lease_seconds = lease_seconds
        self._began_at, self._began_at_monotonic = now, monotonic
        self._ended_at_monotonic = monotonic
        self._patient_until = 0.0

    def tick_begins(self, now: float, monotonic: float) -> bool:
        """Record a tick; returns whether the clock was set back, so that known times are in the future."""
        # Heartbeats come at least twice per lease, so after a smaller jump none seems older than a lease.
        most = self._lease_seconds / 2
        before, self._began_at = self._began_at, now
        passed, self._began_at_monotonic = monotonic - self._began_at_monotonic, monotonic
        # If the monotonic clock runs while all processes are suspended, this happens between two ticks.
        stood_still = self.quiet_seconds(monotonic) >= most
        if before <= now < before + passed + most and not stood_still:
            return False
        _log.warning("the clock went from %.0f to %.0f between two ticks", before, now)
        self._patient_until = now + self._lease_seconds
        return now < before

    def tick_ends(self, monotonic: float) -> None:
        """Record the end of a tick."""
        self._ended_at_monotonic = monotonic

    def quiet_seconds(self, monotonic: float) -> float:
        """Return the time since the last tick ended."""
        return monotonic - self._ended_at_monotonic

    def patient(self, now: float) -> bool:
        """Whether silence proves nothing now."""
        return now < self._patient_until
