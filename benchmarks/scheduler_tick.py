"""CPU time of one scheduler's tick with many queued jobs: `python -m benchmarks.scheduler_tick [JOBS] [URL]`.

Time on the CPU of this process: a server's own is not counted. Prints the median of `_TICKS` ticks.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

from backend.config import ServiceConfig
from backend.scheduler.process_runner import PoolReady
from backend.scheduler.scheduler import Scheduler
from backend.store.store import Store
from backend.store.tables import jobs
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec

_TENANTS = 20
_TICKS = 9


class _NoProcesses:
    """Starts nothing."""

    def __init__(self) -> None:
        self.pools: list[str] = []
        self.news: list[PoolReady] = []
        self.told = 0

    def start_pool(self, pool: object, *_: object) -> None:
        self.pools.append(getattr(pool, "pool_id", pool))  # type: ignore[arg-type]

    def start_job(self, *_: object) -> None:
        self.told += 1

    def changes(self) -> list[PoolReady]:
        news, self.news = self.news, []
        return news

    def node_of(self, _pool_id: str) -> str:
        return ""

    def __getattr__(self, name: str) -> object:
        return lambda *_: {} if name in {"memory", "waiting", "node_bytes"} else []


def _fill(store: Store, count: int) -> None:
    for tenant in range(_TENANTS):
        store.keys.ensure_tenant(f"t{tenant}")
    spec = RLSpec(environment=EnvironmentRef(id="board/TicTacToeVs-v0"), steps=5)
    store.tenant("t0").create_job(spec, {})
    database = store._db
    with database.write() as connection:
        row = dict(connection.execute(jobs.select()).mappings().one())
        row.pop("number")
        connection.execute(
            jobs.insert(),
            [
                row | {"job_id": f"j{n}", "tenant_id": f"t{n % _TENANTS}", "created_at": float(n)}
                for n in range(count - 1)
            ],
        )


def _spent(scheduler: Scheduler) -> str:
    spent = []
    for _ in range(_TICKS):
        before = time.process_time()
        scheduler.tick()
        spent.append((time.process_time() - before) * 1e3)
    return f"median {statistics.median(spent):.1f} ms, longest {max(spent):.1f} ms"


def main(count: int = 10_000, url: str = "") -> None:
    """Print the figures."""
    folder = Path(tempfile.mkdtemp())
    for places in (4, 64):
        store = Store.open(url or f"sqlite:///{folder / f'{places}.db'}")
        _fill(store, count)
        workers = _NoProcesses()
        config = ServiceConfig(data_dir=folder, jobs_per_pool=places, lease_seconds=3600)
        service = store.service()
        scheduler = Scheduler(service, workers, config)  # type: ignore[arg-type]
        print(f"loading the model, all {count} get a reason: first tick", end=" ")
        before = time.process_time()
        scheduler.tick()
        print(f"{(time.process_time() - before) * 1e3:.1f} ms")
        while any(not job.reason for job in service.queued_jobs()):
            scheduler.tick()
        print(f"  then, nothing to do: {_spent(scheduler)}")
        service.register_pool(workers.pools[0], "nano", "http://127.0.0.1:1", "token", time.time())
        workers.news.append(PoolReady(pool_id=workers.pools[0]))
        before = time.process_time()
        scheduler.tick()
        took = (time.process_time() - before) * 1e3
        print(f"  the tick that places {workers.told} jobs: {took:.1f} ms")
        for job in service.queued_jobs()[: 10 * places]:
            if len(service.held_jobs()) < places:
                service.acquire(job.job_id, workers.pools[0], 3600, time.time())
        while True:
            reasons = {job.reason for job in service.queued_jobs()}
            scheduler.tick()
            if {job.reason for job in service.queued_jobs()} == reasons and len(reasons) == 1:
                break
        print(f"  then, all {places} places taken: {_spent(scheduler)}")
        store.close()
        if url:
            break


if __name__ == "__main__":
    main(*(int(one) if one.isdigit() else one for one in sys.argv[1:]))  # type: ignore[arg-type]
