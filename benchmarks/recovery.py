"""How long the service takes to recover from `kill -9` of its gateway, scheduler host, Ray GCS or raylet.

A job trains all the time. The service has recovered when `/v1/health` is `ok` and the job runs again.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass

import httpx
import psutil

import tinkergym as tg
from benchmarks.common import Figure, Service, service, write_result

GOAL_SECONDS = {"gateway": 3.0, "scheduler host": 10.0, "Ray GCS": 10.0, "raylet": 10.0}
_MARKS = {
    "gateway": "backend.gateway",
    "scheduler host": "backend.scheduler.scheduler_host",
    "Ray GCS": "gcs_server",
    "raylet": "raylet",
}
_LOOK_SECONDS = 0.05
"""Time between two checks, which cost the gateway as much time as a response."""
_QUIET_SECONDS = 1.0
"""Both must last this long."""
_SETTLED_SECONDS = 12.0
"""Time between two kills: a part that ends soon after its start waits longer for its next one."""
_PATIENCE_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """What followed a kill, in seconds after it."""

    named: float | None
    """Until health reported a missing part; None: it never did."""
    health: float
    """Until health was `ok` for good."""
    place: float
    """Until the job ran again. The gateway's death does not stop it; then until a client sees it running."""

    @property
    def recovered(self) -> float:
        """Seconds until both."""
        return max(self.health, self.place)


def measure(runs: int = 3) -> list[Figure]:
    """Kill each of the four processes `runs` times, in turn, under a job that trains."""
    found: dict[str, list[Recovery]] = {role: [] for role in GOAL_SECONDS}
    with service() as running, tg.Client(running.url, running.api_key, patience_seconds=60) as client:
        job = client.train(
            "board/TicTacToeVs-v0", steps=100_000, algorithm=tg.GRPO(group_size=4, groups_per_step=2)
        )
        watch = _Watch(running, job.id)
        for _ in range(runs):
            for role, recoveries in found.items():
                watch.until_running()
                time.sleep(_SETTLED_SECONDS)
                recoveries.append(watch.kill(role))
                print(f"{role}: {recoveries[-1]}", flush=True)
        job.cancel()
    figures = [_figure(role, [each.recovered for each in recoveries]) for role, recoveries in found.items()]
    details = {role: [asdict(each) for each in recoveries] for role, recoveries in found.items()}
    return write_result("recovery", figures, details)


def _figure(role: str, seconds: list[float]) -> Figure:
    worst = max(seconds)
    return Figure(
        what=f"recovery after `kill -9` of the {role}",
        asked=f"<= {GOAL_SECONDS[role]:g} s",
        measured=f"{statistics.median(seconds):.1f} s (worst of {len(seconds)}: {worst:.1f})",
        reached=worst <= GOAL_SECONDS[role],
        margin=GOAL_SECONDS[role] / worst,
    )


class _Watch:
    """Polls a service and one of its jobs many times a second."""

    def __init__(self, running: Service, job_id: str) -> None:
        self._running = running
        self._job_id = job_id
        self._http = httpx.Client(
            base_url=running.url,
            headers={"Authorization": f"Bearer {running.api_key}"},
            timeout=5.0,
            trust_env=False,
        )

    def until_running(self) -> None:
        """Wait until the service is well and the job runs."""
        for _ in _looks():
            if self._healthy() and self._job()[0] == "running":
                return

    def kill(self, role: str) -> Recovery:
        """Kill one process with -9 and watch the service recover."""
        (victim,) = _processes(self._running, _MARKS[role])
        attempt = self._job()[1]
        # The gateway's end does not affect the job; that of the others gives it to a new worker.
        wanted = attempt if role == "gateway" else attempt + 1
        began = time.perf_counter()
        victim.kill()
        named: float | None = None
        health: float | None = 0.0
        place: float | None = None
        for _ in _looks():
            healthy, now = self._healthy(), time.perf_counter() - began
            if healthy:
                health = now if health is None else health
            else:
                health = None
                named = now if named is None and healthy is not None else named
            state, attempt = self._job()
            now = time.perf_counter() - began
            if place is None and state == "running" and attempt >= wanted:
                place = now
            if health is not None and place is not None and now >= max(health, place) + _QUIET_SECONDS:
                return Recovery(named, health, place)
        raise AssertionError("the looks do not end")

    def _healthy(self) -> bool | None:
        """Whether health is `ok`; None without a response."""
        try:
            return bool(self._http.get("/v1/health").json()["status"] == "ok")
        except httpx.HTTPError:
            return None

    def _job(self) -> tuple[str, int]:
        """The job's state and its attempt; `("", 0)` without a response."""
        try:
            answer = self._http.get(f"/v1/jobs/{self._job_id}")
        except httpx.HTTPError:
            return "", 0
        return (answer.json()["state"], answer.json()["attempt"]) if answer.is_success else ("", 0)


def _looks() -> Iterator[None]:
    deadline = time.perf_counter() + _PATIENCE_SECONDS
    while time.perf_counter() < deadline:
        yield
        time.sleep(_LOOK_SECONDS)
    raise RuntimeError(f"the service did not recover within {_PATIENCE_SECONDS:g} s")


def _processes(running: Service, mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.Process(running.process.pid).children(recursive=True):
        with suppress(psutil.Error):
            if process.name() == mark or mark in process.cmdline():
                found.append(process)
    return found
