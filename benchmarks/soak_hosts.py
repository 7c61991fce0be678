"""The part of `make soak` on several hosts, which are namespaces of this machine; needs root and PostgreSQL.

Host 0 is the head of a Ray cluster and runs the service, host 2 a second gateway and a standby scheduler. The
model has two learner ranks and two engines on hosts 1 and 2. Besides processes a whole host is killed: all of
Ray on it, as if the machine had crashed; then it comes back. Meanwhile both gateways are asked for tokens.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import httpx

from benchmarks.mixed_kills import GAP_SECONDS, ROUND_SECONDS, drawn_kind, faults_in
from tests.backend.cluster.hosts_in_namespaces import until
from tests.backend.cluster.service_on_hosts import Cluster, cluster_of
from tinkergym.schema.events import JobState

HOST = "host"
_GATEWAYS, _NODES = (0, 2), (1, 2)
_SCHEDULER, _STANDBY = "scheduler host", "standby scheduler"
_SCHEDULERS = r"backend\.scheduler\.scheduler_host"
_NODE = "raylet/raylet"
_CPUS = 8
"""All processes of the model fit on one host."""
_PATTERNS = {
    "gateway": (r"backend\.gateway( |$)", _GATEWAYS[:1]),
    "second gateway": (r"backend\.gateway( |$)", _GATEWAYS[1:]),
    "pool worker": ("ray::PoolProcess", _NODES),
    "environment worker": ("ray::EnvWorkerProcess", _NODES),
    "learner rank": ("ray::RankActor", _NODES),
    "engine host": ("ray::EngineHostProcess", _NODES),
}
"""Of the command line, and the hosts where it may be."""
KINDS = (*_PATTERNS, _SCHEDULER, _STANDBY, HOST)
_OF_A_POOL = ("pool worker", "learner rank", "engine host", HOST)
_START_SECONDS = 900.0
_REQUEST_SECONDS = 600.0
"""A model with ranks and engine hosts takes minutes to come up on a busy machine."""
_PAUSE_SECONDS = 0.5
_ACTIVE = """SELECT DISTINCT host(client_addr) FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted"""
_HEARTBEAT_SECONDS = 5
_SETTINGS: dict[str, object] = {
    # As long as on a service of its own: a busy machine is no loss of a worker.
    "lease_seconds": 30,
    "heartbeat_seconds": _HEARTBEAT_SECONDS,
    "placement.learner.ranks": 2,
    "placement.engines": 2,
}


class Findings(Protocol):
    """What a run adds to; see `soak`."""

    rounds: int
    jobs: int
    kills: Counter[str]
    unequal: list[str]
    wrong: list[str]


def run(seconds: float, drawn: random.Random, findings: Findings) -> None:
    """Kill for so long."""
    with cluster_of(3) as cluster:
        cluster.start(_NODES, cpus=_CPUS)
        cluster.serve(0, "all", **_SETTINGS)
        cluster.serve(2, "gateway", **_SETTINGS)
        # Not with the gateway's data folder, which one supervisor claims.
        cluster.serve(2, "scheduler", data_dir="/tmp/home/standby", **_SETTINGS)
        until(lambda: all(map(cluster.is_ok, _GATEWAYS)), "a service that is ok", _START_SECONDS)
        clean = _round(cluster, lambda: None, findings.wrong)
        ends_at, stop = time.monotonic() + seconds, threading.Event()
        asking = [threading.Thread(target=_ask, args=(cluster, n, stop, findings.wrong)) for n in _GATEWAYS]
        for thread in asking:
            thread.start()
        try:
            while time.monotonic() < ends_at:
                found = _round(
                    cluster, lambda: _strike(cluster, drawn, findings.kills, ends_at), findings.wrong
                )
                findings.rounds, findings.jobs = findings.rounds + 1, findings.jobs + len(clean)
                findings.unequal += [f"{name} on hosts" for name in clean if found[name] != clean[name]]
                print(f"round {findings.rounds}: {findings}", flush=True)
        finally:
            stop.set()
            for thread in asking:
                thread.join()


def _round(cluster: Cluster, strike: Callable[[], None], wrong: list[str]) -> dict[str, list[str | None]]:
    """Run both jobs, striking meanwhile; return the hashes of all their versions."""
    jobs = {"local": cluster.submit(), "ada": cluster.submit_written()}
    service, ends_at = cluster.store.service(), time.monotonic() + ROUND_SECONDS
    while time.monotonic() < ends_at and not all(service.job(one).state.final for one in jobs.values()):
        strike()
        time.sleep(_PAUSE_SECONDS)
    found: dict[str, list[str | None]] = {}
    for tenant, job_id in jobs.items():
        job, events = service.job(job_id), cluster.store.tenant(tenant).events_after(job_id, 0, 10**6)
        if job.state is not JobState.COMPLETED:
            wrong.append(f"{job_id} on hosts: {job.state}: {job.reason}")
        told = [(event.seq, event.body.model_dump(mode="json")) for event in events]
        wrong.extend(f"{job_id} on hosts: {fault}" for fault in faults_in(told))
        found[job.spec.kind] = [service.version_sha256(job_id, version) for version in range(1, job.step + 1)]
    return found


def _strike(cluster: Cluster, drawn: random.Random, kills: Counter[str], ends_at: float) -> None:
    """Start a host that was killed, wait a random while, and kill one of the kinds that were killed least."""
    for number in _NODES:
        if not _processes(cluster, number, _NODE):
            with suppress(AssertionError):  # The next strike tries again.
                cluster.hosts.start_node(number, cpus=_CPUS)
    time.sleep(drawn.uniform(*GAP_SECONDS))
    if time.monotonic() > ends_at:
        return
    found = _victims(cluster)
    kind = drawn_kind(found, KINDS, drawn, kills)
    if kind is None:
        return
    number, process = drawn.choice(found[kind])
    with suppress(AssertionError):  # It ended meanwhile.
        if kind == HOST:
            cluster.hosts.kill(number, "raylet")
            cluster.hosts.stop_node(number)
        else:
            cluster.hosts.run(number, "kill", "-KILL", process)
        kills[kind] += 1
        print(f"killed: {kind} on host {number}", flush=True)


def _victims(cluster: Cluster) -> dict[str, list[tuple[int, str]]]:
    """Return the host and the process id, as that host knows it, of all that may be killed."""
    found: dict[str, list[tuple[int, str]]] = {}
    patterns = _PATTERNS | {_STANDBY: (_SCHEDULERS, _GATEWAYS), HOST: (_NODE, _NODES)}
    active = {row[0] for row in cluster.server.rows(_ACTIVE, "store")}
    for kind, (pattern, numbers) in patterns.items():
        for number in numbers:
            is_active = kind == _STANDBY and cluster.hosts.address(number) in active
            for process in _processes(cluster, number, pattern):
                found.setdefault(_SCHEDULER if is_active else kind, []).append((number, process))
    # What a model needs to come up is left alone: three ends of its pool meanwhile fail its jobs, rightly.
    if not cluster.store.service().pools(time.time(), max_age=2 * _HEARTBEAT_SECONDS):
        for kind in _OF_A_POOL:
            found.pop(kind, None)
    return found


def _processes(cluster: Cluster, number: int, pattern: str) -> list[str]:
    with suppress(AssertionError):  # There is none.
        return cluster.hosts.run(number, "pgrep", "-f", pattern).split()
    return []


def _ask(cluster: Cluster, number: int, stop: threading.Event, wrong: list[str]) -> None:
    """Sample through one gateway; note each request that was not answered however often it was repeated."""
    wanted: dict[str, Any] = {"request_id": "r", "policy": "nano", "prompt_ids": [1, 2], "max_tokens": 4}
    while not stop.wait(_PAUSE_SECONDS):
        began, said = time.monotonic(), ""
        while not stop.is_set():
            try:
                answer = cluster.ask(number, "/v1/sample", {"requests": [wanted]})
                said = answer.text
                if answer.status_code == 200 and "token_ids" in said:
                    break
            except (httpx.HTTPError, ValueError) as error:
                said = repr(error)
            if time.monotonic() - began > _REQUEST_SECONDS:
                wrong.append(f"no answer through gateway {number}: {said[:200]}")
                break
            stop.wait(_PAUSE_SECONDS)
