"""Runs a scheduler in a thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from backend.processes.ends import TICK_STOP_SECONDS

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.1
"""How often the store is asked for commits; processes report changes by themselves."""
_STAND_BY_SECONDS = 1.0


class Ticks(Protocol):
    """A scheduler; see `scheduler.Scheduler`."""

    def due(self) -> bool:
        """Whether a tick could find anything."""
        ...

    def tick(self) -> None:
        """Check everything once, and do what is due."""
        ...


class Alone(Protocol):
    """A claim to be the only active scheduler of a database."""

    def held(self) -> bool:
        """Take the claim if it is free; return whether this process has it now."""
        ...


class Ticking:
    """Makes a scheduler and lets it tick until `stop`, in its own thread.

    It stands by while another process has the claim, and begins anew after it had lost it: what the last
    scheduler started goes on meanwhile, for the next one to find.
    """

    def __init__(self, make: Callable[[Callable[[], None]], Ticks], alone: Alone) -> None:
        """Start; `make` gets a function that lets the scheduler look at once, from any thread."""
        self._make, self._alone = make, alone
        self._stop, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        scheduler: Ticks | None = None
        while not self._stop.is_set():
            self._wake.wait(_LOOK_SECONDS)
            # Before looking: what is reported from here on wakes the next round.
            self._wake.clear()
            try:
                if not self._alone.held():
                    scheduler = None
                    self._stop.wait(_STAND_BY_SECONDS)
                    continue
                scheduler = scheduler or self._make(self._wake.set)
                if scheduler.due():
                    scheduler.tick()
            except Exception:
                # The next tick retries what this one did not finish (a full disk, a locked database).
                _log.exception("error in the scheduler")
                self._stop.wait(1.0)

    def stop(self) -> None:
        """End after the current tick."""
        # In this order: the thread that wakes looks whether it is to stop.
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout=TICK_STOP_SECONDS)
