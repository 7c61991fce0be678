"""How many engine hosts each pool has: one less than its model has engines."""

from __future__ import annotations

import logging
import uuid
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from backend import worker_url
from backend.config import ServiceConfig
from backend.scheduler.pools import Pool
from backend.scheduler.process_runner import EngineHostEnded, ProcessRunner, Running
from backend.store.service_parts import engines_part, late_engines
from backend.store.store import ServiceStore

_log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 60.0
"""Interval between attempts to start an engine host that ends again and again."""
_LATE_SECONDS = 300.0
"""An engine host that has not registered after this long is reported; a large model may take as long."""
_HOPELESS_SECONDS = 3600.0
"""After this long it is ended, and another one started."""


@dataclass(slots=True)
class _Fleet:
    """The engine hosts of one pool. Times are Unix seconds."""

    model: str = ""
    hosts: dict[int, str] = field(default_factory=dict)
    """The id of each by its number; the pool's own engine is number 0."""
    started_at: dict[str, float] = field(default_factory=dict)
    pauses: dict[int, float] = field(default_factory=dict)
    """How long to wait after the next end, in seconds."""
    not_before: dict[int, float] = field(default_factory=dict)


class EngineFleets:
    """Starts the missing engine hosts of pools that are ready, and ends those that fell silent.

    An engine host ends with its pool. One that ends by itself is replaced: its pool has asked its requests
    elsewhere by then, and the next one fetches the published weights.
    """

    def __init__(self, store: ServiceStore, workers: ProcessRunner, config: ServiceConfig) -> None:
        self._store, self._workers, self._config = store, workers, config
        self._fleets: defaultdict[str, _Fleet] = defaultdict(_Fleet)
        self._late: set[str] = set()
        """Models of which an engine host should have registered by now."""

    def adopt(self, found: Iterable[Running], now: float) -> None:
        """Take over the processes of the last scheduler, and forget those that are gone."""
        running = {process.worker_id: process for process in found if process.kind == "engine_host"}
        for engine_id, process in running.items():
            fleet = self._fleets[process.pool_id]
            fleet.hosts[process.number] = engine_id
            fleet.started_at[engine_id] = now
        for record in self._store.engine_hosts():
            if record.engine_id not in running:
                self._forget(record.engine_id)
        for part in late_engines(self._store.parts(now)):
            self._store.forget_part(part)

    def start_missing(self, pools: Iterable[Pool], now: float) -> None:
        """Start what these pools lack; those of other pools ended with them, and are forgotten."""
        known = {pool.pool_id: pool for pool in pools}
        for pool_id in self._fleets.keys() - known.keys():
            for engine_id in self._fleets.pop(pool_id).hosts.values():
                self._forget(engine_id)
        for pool in known.values():
            if pool.ready:
                self._fleets[pool.pool_id].model = pool.model
                self._start_missing(pool, self._fleets[pool.pool_id], now)

    def ended(self, change: EngineHostEnded, now: float) -> None:
        """Record that an engine host's process is gone; the next one starts after a pause."""
        fleet = self._fleets[change.pool_id]
        number = next((n for n, engine_id in fleet.hosts.items() if engine_id == change.engine_id), None)
        self._forget(change.engine_id)
        # It was ended together with its pool, whose fleet is new and empty.
        if number is None:
            return
        _log.warning("engine host %s ended: %s", change.engine_id, change.error or "process died")
        del fleet.hosts[number]
        lived = now - fleet.started_at.pop(change.engine_id, now)
        before = fleet.pauses.get(number, 0.0)
        # One that worked for a while begins without a history.
        pause = _FIRST_PAUSE_SECONDS if lived > _LONGEST_PAUSE_SECONDS else 2 * before or _FIRST_PAUSE_SECONDS
        fleet.pauses[number] = min(pause, _LONGEST_PAUSE_SECONDS)
        fleet.not_before[number] = now + (0.0 if lived > _LONGEST_PAUSE_SECONDS else fleet.pauses[number])

    def end_silent(self, now: float) -> None:
        """End engine hosts without heartbeats: alive processes that hang. Report those that never had one."""
        # Also without hosts while one is reported as late: the report must be taken back.
        if not (self._late or any(fleet.hosts for fleet in self._fleets.values())):
            return
        seen_at = {one.engine_id: one.seen_at for one in self._store.engine_hosts()}
        late: set[str] = set()
        for pool_id, fleet in self._fleets.items():
            for engine_id in fleet.hosts.values():
                silent = now - seen_at.get(engine_id, fleet.started_at[engine_id])
                if engine_id not in seen_at and silent > _LATE_SECONDS:
                    late.add(fleet.model)
                if silent > (self._config.lease_seconds if engine_id in seen_at else _HOPELESS_SECONDS):
                    _log.warning("engine host %s has been silent for %.0f s", engine_id, silent)
                    self._workers.end_engine_host(pool_id, engine_id)
        for model in late - self._late:
            _log.warning("an engine host of %s has not registered after %.0f s", model, _LATE_SECONDS)
            self._store.touch_part(engines_part(model), now)
        for model in self._late - late:
            self._store.forget_part(engines_part(model))
        self._late = late

    def clock_set_back(self, now: float) -> None:
        """Replace times of the old clock, which are in the future and would be waited for."""
        for fleet in self._fleets.values():
            fleet.not_before.clear()
            fleet.started_at = dict.fromkeys(fleet.started_at, now)

    def _start_missing(self, pool: Pool, fleet: _Fleet, now: float) -> None:
        for number in range(1, self._workers.engines_of(pool.pool_id, pool.model)):
            if number in fleet.hosts or now < fleet.not_before.get(number, 0.0):
                continue
            engine_id = f"engine-{uuid.uuid4().hex[:12]}"
            fleet.hosts[number], fleet.started_at[engine_id] = engine_id, now
            self._workers.start_engine_host(pool.pool_id, engine_id, pool.model, number)

    def _forget(self, engine_id: str) -> None:
        url = self._store.remove_engine_host(engine_id)
        if url is not None:
            worker_url.remove(url)  # If it ran on this machine and was killed, it left its socket behind.
