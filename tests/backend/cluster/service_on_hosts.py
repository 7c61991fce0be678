"""A service on several hosts: what starts it, asks it and looks at what it leaves."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx

from backend.config import ServiceConfig
from backend.store.store import Store
from tests.backend.cluster.hosts_in_namespaces import Hosts, hosts, until
from tests.backend.postgres_server import PostgresServer
from tests.backend.s3_server import BUCKET, HAS_S3, S3Server
from tests.backend.scheduler.hosts import Host
from tinkergym.algorithms import GRPO
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import EnvironmentRef, Sampling
from tinkergym.schema.jobs.rl import RLSpec

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
    blobs: str
    """A bucket, where a server for it is installed; else a folder that all hosts see."""
    serving: dict[tuple[int, str], subprocess.Popen[Any]] = field(default_factory=dict)
    """By host and role."""

    def start(self, nodes: tuple[int, ...], **resources: int) -> None:
        self.hosts.start_node(0, head=None, cpus=0)
        for number in nodes:
            self.hosts.start_node(number, **resources)

    def serve(self, number: int, role: str = "all", **settings: object) -> None:
        written = {
            "data_dir": DATA,
            "blobs": self.blobs,
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
        self.serving[number, role] = self.hosts.start(number, *program, *words)
        if role != "scheduler":
            until(lambda: self.hosts.read(number, f"{DATA}/local.json"), f"the service on host {number}")

    def ask(self, number: int, path: str, body: object = None) -> Any:
        key = json.loads(self.hosts.read(number, f"{DATA}/local.json"))["api_key"]
        url, headers = f"http://{self.hosts.address(number)}:8265{path}", {"Authorization": f"Bearer {key}"}
        with httpx.Client(headers=headers, timeout=60.0) as client:
            return client.get(url) if body is None else client.post(url, json=body)

    def is_ok(self, number: int = 0) -> bool:
        with suppress(httpx.HTTPError):
            return bool(self.ask(number, "/v1/health").json()["status"] == "ok")
        return False

    def sample(self, number: int, policy: str, version: int) -> list[int]:
        wanted = {"request_id": "r", "policy": policy, "prompt_ids": [1, 2], "max_tokens": 4}
        wanted |= {"policy_version": version}
        answer = self.ask(number, "/v1/sample", {"requests": [wanted]})
        assert answer.status_code == 200, answer.text
        return list(json.loads(answer.text.splitlines()[0])["token_ids"])

    def submit(self, model: str = "nano", steps: int = 6) -> str:
        spec = RLSpec(
            environment=EnvironmentRef(id="board/TicTacToeVs-v0"),
            model=model,
            algorithm=GRPO(group_size=4, groups_per_step=4),
            sampling=Sampling(max_turn_tokens=8),
            steps=steps,
            seed=3,
            deterministic=True,
            checkpoint_every=2,
        )
        return self.store.tenant("local").create_job(spec, {}).job_id

    def submit_written(self) -> str:
        """Submit a job that learns from a dataset, and needs no environment."""
        config = ServiceConfig(data_dir=self.hosts.shared, blobs=self.blobs)
        here = SimpleNamespace(config=config, tenant=self.store.tenant("ada"))
        self.store.keys.ensure_tenant("ada")
        short = {"adapter": {"kind": "full"}, "steps": 6, "batch_size": 8, "checkpoint_every": 3}
        return Host.submit_written(here, "sft", **short)

    def until_step(self, job_id: str, step: int) -> None:
        def waiting() -> str:
            job = self.store.service().job(job_id)
            return f"step {step}; the job is {job.state}: {job.reason}"

        until(lambda: self.store.service().job(job_id).step >= step, waiting)

    def final_weights(self, job_id: str) -> str | None:
        service = self.store.service()
        until(lambda: service.job(job_id).state.final, "the job's end")
        job = service.job(job_id)
        assert job.state is JobState.COMPLETED, job.reason
        return service.version_sha256(job_id, job.step)

    def hosts_of(self, actor: str) -> list[int]:
        """Return the hosts with a living actor of this class."""
        asked = {n: self.hosts.command(n, "pgrep", "-f", f"ray::{actor}") for n in range(1, self.hosts.count)}
        done = {
            n: subprocess.run(words, check=False, stdout=subprocess.DEVNULL) for n, words in asked.items()
        }
        return [n for n, found in done.items() if found.returncode == 0]

    def stop(self) -> None:
        self.hosts.run(0, "pkill", "-TERM", "-f", "backend.app.supervisor")
        assert self.serving[0, "all"].wait(60) == 0

    def left(self) -> str:
        """Return the actors and placement groups in the cluster."""
        lines = self.hosts.run(0, sys.executable, "-c", _LEFT).splitlines()
        return next(line for line in lines if line.startswith("LEFT")).removeprefix("LEFT ")


@contextmanager
def cluster_of(count: int) -> Iterator[Cluster]:
    """Make hosts with a database server, and no node yet."""
    shared = Path(tempfile.mkdtemp(prefix="hosts-", dir="/tmp"))
    with hosts(count, shared) as made, ExitStack() as ends:
        server = PostgresServer(made.outside)
        ends.callback(server.stop)
        server.execute("CREATE DATABASE store")
        store = Store.open(server.url("store"))
        ends.callback(store.close)
        blobs = str(shared / "blobs")
        if HAS_S3:
            ends.enter_context(S3Server.running(made.outside))
            blobs = f"{BUCKET}/hosts"
        yield Cluster(made, server, store, blobs)
    shutil.rmtree(shared, ignore_errors=True)
