"""How many environment workers each pool has, and for whom."""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from backend.config import ServiceConfig
from backend.scheduler.pools import Pool
from backend.scheduler.process_runner import EnvWorkerEnded, EnvWorkersSeen, ProcessRunner, Running

_OWNER_SECONDS = 30.0
"""After this time without jobs an owner's environment workers are stopped, if there are enough others."""


@dataclass(slots=True)
class _Team:
    """The environment workers of one pool."""

    workers: set[str] = field(default_factory=set)
    owners: dict[str, str] = field(default_factory=dict)
    """The owner whose jobs a worker plays; new ones are missing."""
    wanted_at_by_owner: dict[str, float] = field(default_factory=dict)
    """When each owner last had jobs for environment workers."""
    reported_at: float = 0.0
    """When the pool last reported about them."""


class EnvWorkers:
    """Keeps `env_workers` of them for each owner with jobs, and ends those of owners without.

    A worker is listed with the pool it plays for, from its start until its process is gone; the end of a pool
    takes its workers with it. A worker plays for one owner only.
    """

    def __init__(self, workers: ProcessRunner, config: ServiceConfig) -> None:
        self._workers, self._config = workers, config
        self._teams: defaultdict[str, _Team] = defaultdict(_Team)

    def adopt(self, found: Iterable[Running]) -> None:
        """Take over the processes of the last scheduler."""
        for process in found:
            if process.kind == "env_worker":
                self._teams[process.pool_id].workers.add(process.worker_id)

    def ended(self, change: EnvWorkerEnded) -> None:
        """Record that a worker died, and tell its pool."""
        self._teams[change.pool_id].workers.discard(change.worker_id)
        self._workers.env_worker_ended(change.pool_id, change.worker_id, change.end, change.remains)

    def reported(self, change: EnvWorkersSeen, now: float) -> None:
        """Record a pool's report about its workers."""
        team = self._teams[change.pool_id]
        team.owners, team.reported_at = dict(change.owners), now
        team.wanted_at_by_owner |= dict.fromkeys(change.wanted, now)

    def start_and_end(self, pools: Iterable[Pool], now: float) -> None:
        """Start missing workers of these pools, and end superfluous ones; other pools' are forgotten."""
        ids = {pool.pool_id: pool for pool in pools}
        for pool_id in self._teams.keys() - ids.keys():
            del self._teams[pool_id]
        for pool_id, pool in ids.items():
            self._balance(pool, self._teams[pool_id], now)

    def _balance(self, pool: Pool, team: _Team, now: float) -> None:
        # A new one takes the first owner it meets, so workers for the next owner are ready in time. A resting
        # model that is not preloaded has none: two take a third of a small model's memory.
        preloaded = pool.model in self._config.preload
        rests = not preloaded and now - pool.jobs_at > self._config.pool_rest_seconds
        since = team.reported_at - _OWNER_SECONDS
        team.wanted_at_by_owner = {k: at for k, at in team.wanted_at_by_owner.items() if at > since}
        # Those with jobs in the last report, which gave all of them its own time.
        wanted = [owner for owner, at in team.wanted_at_by_owner.items() if at == team.reported_at]
        playing = {worker: team.owners[worker] for worker in team.workers & team.owners.keys()}
        count, free = Counter(playing.values()), len(team.workers) - len(playing)
        most = 0 if rests and not wanted else self._config.env_workers
        missing = sum(max(0, most - count[owner]) for owner in wanted) - free
        # At least as many as one owner needs, even before there is one.
        for _ in range(max(missing, most - len(team.workers))):
            worker_id = f"env-{uuid.uuid4().hex[:12]}"
            team.workers.add(worker_id)
            self._workers.start_env_worker(pool.pool_id, worker_id)
        left = [worker for worker, owner in playing.items() if owner not in team.wanted_at_by_owner]
        left += list(team.workers - playing.keys()) if most == 0 else []
        for worker_id in left[: max(0, len(team.workers) - most)]:
            team.workers.discard(worker_id)
            self._workers.end_env_worker(pool.pool_id, worker_id)
