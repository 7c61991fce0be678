"""A service whose gateway, pools and environment workers are on different machines, and what it survives.

The hosts share the network, one PostgreSQL server and one folder for blobs, and nothing else: each has a data
folder of its own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from backend.config import ServiceConfig
from backend.store.store import Store
from tests.backend.cluster.hosts_in_namespaces import Hosts, hosts, missing, until
from tests.backend.postgres_server import PostgresServer
from tests.backend.scheduler.hosts import Host
from tinkergym.algorithms import GRPO
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import EnvironmentRef, Sampling
from tinkergym.schema.jobs.rl import RLSpec

pytestmark = [pytest.mark.service, pytest.mark.full("starts Ray on several hosts"), pytest.mark.timeout(900)]

QUEUED_SECONDS = 10.0
DATA = "/tmp/home/data"
"""On each host a different folder."""
_LEFT = """
import ray
ray.init(address="auto", log_to_driver=False)
groups = ray.util.placement_group_table().values()
left = [group["name"] for group in groups if group["state"] != "REMOVED"]
print("LEFT", ray.util.list_named_actors(all_namespaces=True) + left)
"""


@dataclass
class Cluster:
    """Hosts 1 to 3 run models, host 0 is the head and runs the service."""

    hosts: Hosts
    server: PostgresServer
    store: Store
    serving: dict[int, subprocess.Popen[Any]] = field(default_factory=dict)

    def start(self, nodes: tuple[int, ...]) -> None:
        self.hosts.start_node(0, head=None, cpus=0)
        for number in nodes:
            self.hosts.start_node(number)

    def serve(self, number: int, role: str = "all", **settings: object) -> None:
        written = {
            "data_dir": DATA,
            "blobs": self.hosts.shared / "blobs",
            "database_url": self.server.url("store"),
            "host": "0.0.0.0",
            "ray.address": f"{self.hosts.address(0)}:6379",
            "private_network": "true",
            "torch_threads": 1,
            "env_workers": 1,
            "lease_seconds": 6,
            "heartbeat_seconds": 1,
            **settings,
        }
        words = [word for name, value in written.items() for word in ("--set", f"{name}={value}")]
        program = [sys.executable, "-m", "backend.app.supervisor", "--role", role]
        self.serving[number] = self.hosts.start(number, *program, *words)
        until(lambda: self.hosts.read(number, f"{DATA}/local.json"), f"the service on host {number}", 60)

    def ask(self, number: int, path: str, body: object = None) -> Any:
        key = json.loads(self.hosts.read(number, f"{DATA}/local.json"))["api_key"]
        url, headers = f"http://{self.hosts.address(number)}:8265{path}", {"Authorization": f"Bearer {key}"}
        with httpx.Client(headers=headers, timeout=60.0) as client:
            return client.get(url) if body is None else client.post(url, json=body)

    def is_ok(self, number: int = 0) -> bool:
        with suppress(httpx.HTTPError):
            return bool(self.ask(number, "/v1/health").json()["status"] == "ok")
        return False

    def sample(self, number: int, policy: str) -> list[int]:
        wanted = {"request_id": "r", "policy": policy, "prompt_ids": [1, 2], "max_tokens": 4}
        answer = self.ask(number, "/v1/sample", {"requests": [wanted]})
        assert answer.status_code == 200, answer.text
        return list(json.loads(answer.text.splitlines()[0])["token_ids"])

    def submit(self) -> str:
        spec = RLSpec(
            environment=EnvironmentRef(id="board/TicTacToeVs-v0"),
            algorithm=GRPO(group_size=4, groups_per_step=4),
            sampling=Sampling(max_turn_tokens=8),
            steps=6,
            seed=3,
            deterministic=True,
            checkpoint_every=2,
        )
        return self.store.tenant("local").create_job(spec, {}).job_id

    def submit_written(self) -> str:
        """Submit a job that learns from a dataset, and needs no environment."""
        config = ServiceConfig(data_dir=self.hosts.shared, blobs=str(self.hosts.shared / "blobs"))
        here = SimpleNamespace(config=config, tenant=self.store.tenant("ada"))
        self.store.keys.ensure_tenant("ada")
        short = {"adapter": {"kind": "full"}, "steps": 6, "batch_size": 8, "checkpoint_every": 3}
        return Host.submit_written(here, "sft", **short)

    def until_step(self, job_id: str, step: int) -> None:
        until(lambda: self.store.service().job(job_id).step >= step, f"step {step}")

    def final_weights(self, job_id: str) -> str | None:
        service = self.store.service()
        until(lambda: service.job(job_id).state.final, "the job's end")
        job = service.job(job_id)
        assert job.state is JobState.COMPLETED, job.reason
        return service.version_sha256(job_id, job.step)

    def hosts_of(self, actor: str) -> list[int]:
        """Return the hosts with a living actor of this class."""
        asked = {n: self.hosts.command(n, "pgrep", "-f", f"ray::{actor}") for n in (1, 2, 3)}
        done = {
            n: subprocess.run(words, check=False, stdout=subprocess.DEVNULL) for n, words in asked.items()
        }
        return [n for n, found in done.items() if found.returncode == 0]

    def stop(self) -> None:
        self.hosts.run(0, "pkill", "-TERM", "-f", "backend.app.supervisor")
        assert self.serving[0].wait(60) == 0

    def left(self) -> str:
        """Return the actors and placement groups in the cluster."""
        lines = self.hosts.run(0, sys.executable, "-c", _LEFT).splitlines()
        return next(line for line in lines if line.startswith("LEFT")).removeprefix("LEFT ")


@pytest.fixture(scope="module")
def cluster():
    if reason := missing():
        pytest.skip(reason)
    shared = Path(tempfile.mkdtemp(prefix="hosts-", dir="/tmp"))
    with hosts(4, shared) as made:
        server = PostgresServer(made.outside)
        server.execute("CREATE DATABASE store")
        store = Store.open(server.url("store"))
        try:
            cluster = Cluster(made, server, store)
            cluster.start((1, 2))
            cluster.serve(0)
            until(cluster.is_ok, "a service that is ok")
            yield cluster
        finally:
            store.close()
            server.stop()
    shutil.rmtree(shared, ignore_errors=True)


@pytest.fixture(scope="module")
def undisturbed(cluster):
    return cluster.final_weights(cluster.submit())


def test_trains_and_samples_on_hosts_apart(cluster, undisturbed):
    (pool,), (player,) = cluster.hosts_of("PoolProcess"), cluster.hosts_of("EnvWorkerProcess")
    assert {pool, player} == {1, 2}
    cluster.serve(3, role="gateway")
    until(lambda: cluster.is_ok(3), "a second gateway")
    assert cluster.sample(3, "nano") == cluster.sample(0, "nano")


def test_refuses_node_with_other_versions_and_says_why(cluster, undisturbed):
    # Its own version is written where Python looks first.
    fake = cluster.hosts.shared / "fake" / "torch-0.0.1.dist-info"
    fake.mkdir(parents=True)
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0.0.1\n")
    cluster.hosts.start_node(3, PYTHONPATH=str(fake.parent))
    refusal = f"{cluster.hosts.address(3)} is not used (torch 0.0.1 there"
    until(lambda: refusal in cluster.hosts.read(0, f"{DATA}/logs/scheduler.log"), "the refusal")
    cluster.hosts.stop_node(3)


def test_goes_on_elsewhere_when_a_host_loses_its_network(cluster, undisturbed):
    cluster.hosts.start_node(3)
    job_id = cluster.submit()
    cluster.until_step(job_id, 3)
    (lost,) = cluster.hosts_of("PoolProcess")
    cluster.hosts.cut(lost)
    began = time.monotonic()
    queued = until(lambda: cluster.store.service().job(job_id).state is JobState.QUEUED, "the queue", 60)
    took = time.monotonic() - began
    reason = cluster.store.service().job(job_id).reason
    assert queued
    assert took < QUEUED_SECONDS
    assert "its worker" in reason
    assert cluster.final_weights(job_id) == undisturbed
    cluster.hosts.join(lost)
    cluster.hosts.stop_node(lost)  # Ray's own end of a node that was given up.
    cluster.hosts.start_node(lost)
    assert cluster.final_weights(cluster.submit()) == undisturbed


def test_waits_for_the_database_and_ends_with_same_bits(cluster, undisturbed):
    job_id = cluster.submit()
    cluster.until_step(job_id, 3)
    cluster.server.freeze()
    time.sleep(20.0)  # What is measured is a stop of this length.
    cluster.server.thaw()
    assert cluster.final_weights(job_id) == undisturbed


def test_waits_for_a_cluster_whose_head_died(cluster, undisturbed):
    job_id = cluster.submit()
    cluster.until_step(job_id, 3)
    cluster.hosts.run(0, "pkill", "-KILL", "gcs_server")
    # Nodes end by themselves a minute after their head, and the pools with them.
    for number in (1, 2, 3):
        cluster.hosts.kill(number, "raylet")
    until(lambda: "cluster" in cluster.ask(0, "/v1/health").json()["waiting_for"], "the cluster's end")
    until(lambda: cluster.store.service().job(job_id).state is JobState.QUEUED, "the queue")
    assert "Ray cluster" in cluster.store.service().job(job_id).reason
    for number in range(4):
        cluster.hosts.stop_node(number)
    cluster.start((1, 2))
    assert cluster.final_weights(job_id) == undisturbed


def test_leaves_no_actor_and_no_group_behind(cluster):
    assert cluster.left() != "[]"
    cluster.stop()
    assert cluster.left() == "[]"


def test_learns_same_bits_with_ranks_on_two_hosts(cluster):
    def learn(cpus):
        for number in range(4):
            cluster.hosts.stop_node(number)
        cluster.hosts.start_node(0, head=None, cpus=0)
        for number, count in cpus.items():
            cluster.hosts.start_node(number, cpus=count)
        cluster.serve(0, placement={"learner": {"ranks": 2, "divided": True}})
        job_id = cluster.submit_written()
        cluster.until_step(job_id, 1)
        apart = cluster.hosts_of("RankActor")
        found = cluster.final_weights(job_id)
        cluster.stop()
        return apart, found

    together, expected = learn({3: 4})
    apart, found = learn({1: 2, 2: 2})
    assert (together, apart) == ([3], [1, 2])
    assert found == expected
