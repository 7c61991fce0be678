"""CPU time of one scheduler's tick with 10,000 queued jobs, on SQLite.

Time on the CPU of this process. `python -m benchmarks.scheduler_tick URL` prints it with another database,
without the server's own time.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from backend.config import ServiceConfig
from backend.scheduler.process_runner import PoolReady
from backend.scheduler.scheduler import Scheduler
from backend.store.store import Store
from backend.store.tables import jobs
from benchmarks.common import Figure, write_result
from tests.backend.scheduler.conftest import ScriptedWorkers
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec

_GOAL_MS = 20.0
_JOBS, _TENANTS = 10_000, 20
_PLACES = (4, 64)
_TICKS = 9


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


def measure(runs: int = _TICKS) -> list[Figure]:
    """Measure ticks with 4 places and with 64: with nothing to do, and one that places jobs."""
    with tempfile.TemporaryDirectory() as folder:
        found = {places: _ticks(f"sqlite:///{folder}/{places}.db", places, runs) for places in _PLACES}
    figures = [
        Figure(
            what=f"one scheduler tick with {_JOBS} queued jobs and {places} places, CPU",
            asked=f"<= {_GOAL_MS:.0f} ms",
            measured=f"{median:.1f} ms (median of {runs}; {ms['placing'][0]:.1f} ms to place {places} jobs)",
            reached=median <= _GOAL_MS,
            margin=_GOAL_MS / median,
        )
        for places, ms in found.items()
        for median in [statistics.median(ms["taken"])]
    ]
    return write_result("scheduler_tick", figures, {"ms": found})


def _ticks(url: str, places: int, runs: int) -> dict[str, list[float]]:
    """Return the CPU time of ticks in milliseconds, by what they have to do."""
    store = Store.open(url)
    _fill(store, _JOBS)
    workers = ScriptedWorkers()
    config = ServiceConfig(data_dir=Path(tempfile.gettempdir()), jobs_per_pool=places, lease_seconds=3600)
    service = store.service()
    scheduler = Scheduler(service, workers, config)
    found = {"first": [_cpu_ms(scheduler.tick)]}  # It starts the pool, and every job gets a reason.
    while any(not job.reason for job in service.queued_jobs()):
        scheduler.tick()
    found["loading"] = [_cpu_ms(scheduler.tick) for _ in range(runs)]
    (pool_id,) = workers.pools
    service.register_pool(pool_id, "nano", "http://127.0.0.1:1", "token", time.time())
    workers.news.append(PoolReady(pool_id=pool_id))
    found["placing"] = [_cpu_ms(scheduler.tick)]
    for job in service.queued_jobs()[: 10 * places]:
        if len(service.held_jobs()) < places:
            service.acquire(job.job_id, pool_id, 3600, time.time())
    while True:
        reasons = {job.reason for job in service.queued_jobs()}
        scheduler.tick()
        if {job.reason for job in service.queued_jobs()} == reasons and len(reasons) == 1:
            break
    found["taken"] = [_cpu_ms(scheduler.tick) for _ in range(runs)]
    store.close()
    return found


def _cpu_ms(act: Callable[[], object]) -> float:
    before = time.process_time()
    act()
    return (time.process_time() - before) * 1e3


if __name__ == "__main__":
    print(_ticks(sys.argv[1], _PLACES[0], _TICKS))
