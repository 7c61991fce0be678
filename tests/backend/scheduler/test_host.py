"""Real processes: Ray with scheduler, pool and environment worker, killed one after the other."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from backend.catalog.models import load_renderer_bundle, resolve_model
from backend.config import ServiceConfig
from backend.store.store import Store
from backend.store.uploads import Uploads
from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.prepare import prepare
from tinkergym.schema.algorithms import GRPO
from tinkergym.schema.events import JobState
from tinkergym.schema.job_spec import EnvironmentRef, JobSpec, Sampling
from tinkergym.schema.parsing import parse_any_spec
from tinkergym.tasks import SequenceTasks

pytestmark = [pytest.mark.service, pytest.mark.slow]

PATIENCE_SECONDS = 180.0
STEPS = 5
WRITTEN_STEPS = 40


class Host:
    """The scheduler's host of one data folder, and its store."""

    def __init__(self, folder, **settings) -> None:
        self.config = ServiceConfig(data_dir=folder, lease_seconds=10.0, heartbeat_seconds=1.0, **settings)
        self.store = Store.open(self.config.store_url)
        self.store.keys.ensure_tenant("ada")
        self.tenant, self.service = self.store.tenant("ada"), self.store.service()
        self.log = folder / "host.log"
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "backend.scheduler.host"],
                env={**os.environ, **self.config.environment()},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def below(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def named(self, name: str) -> list[psutil.Process]:
        found = []
        for process in self.below():
            with suppress(psutil.Error):
                if any(name in word for word in [process.name(), *process.cmdline()]):
                    found.append(process)
        return found

    def find(self, name: str) -> psutil.Process:
        for process in self.named(name):
            return process
        pytest.fail(f"no process {name}; the host's log: {self.log.read_text()[-2000:]}")

    def submit(self) -> str:
        spec = JobSpec(
            environment=EnvironmentRef(id="board/TicTacToeVs-v0"),
            algorithm=GRPO(group_size=8, groups_per_step=8),
            sampling=Sampling(max_turn_tokens=8),
            steps=STEPS,
            seed=3,
            deterministic=True,
            checkpoint_every=2,
        )
        return self.tenant.create_job(spec, {}).job_id

    def submit_written(self, kind: str, **settings) -> str:
        """A job on written data, with a checkpoint now and then."""
        directory = resolve_model("nano", self.config.models, allow_any=False)
        renderer = Renderer.from_bundle(load_renderer_bundle("nano", directory))
        rows = [
            {"prompt": f"{n}?", "completion": f"{n}."}
            if kind == "sft"
            else {"prompt": f"{n}?", "chosen": f"{n}.", "rejected": f"{n + 1}."}
            for n in range(64)
        ]
        ready = prepare(SequenceTasks(rows), renderer, kind=kind)
        uploads = Uploads(self.config.uploads, "ada")
        for name, body in ready.bodies.items():
            uploads.add_chunk(name, body, most_bytes=2**24)
        data = uploads.complete(ready.manifest, most_bytes=2**24).data_id
        settings = {
            "kind": kind,
            "data": data,
            "steps": WRITTEN_STEPS,
            "batch_size": 32,
            "checkpoint_every": 7,
            **settings,
        }
        return self.tenant.create_job(parse_any_spec(settings), {}).job_id

    def until(self, happened) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not happened():
            if time.monotonic() > deadline:
                pytest.fail(f"waited in vain; the host's log: {self.log.read_text()[-2000:]}")
            threading.Event().wait(0.02)

    def final_weights(self, job_id: str) -> str:
        self.until(lambda: self.service.job(job_id).state.final)
        job = self.service.job(job_id)
        assert job.state is JobState.COMPLETED, job.reason
        sha256 = self.service.version_sha256(job_id, job.step)
        assert sha256 is not None
        return sha256


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    host = Host(tmp_path_factory.mktemp("service"))
    yield host
    assert host.stop() == 0
    host.store.close()
    shutil.rmtree(host.config.run_dir)  # the supervisor's work


@pytest.fixture(scope="module")
def undisturbed(host):
    return host.final_weights(host.submit())


def test_a_run_repeats_to_the_bit(host, undisturbed):
    assert host.final_weights(host.submit()) == undisturbed


def test_nothing_listens_beyond_this_machine(host, undisturbed):
    for process in [psutil.Process(host.process.pid), *host.below()]:
        for connection in process.net_connections():
            if connection.status == psutil.CONN_LISTEN and connection.family != socket.AF_UNIX:
                assert connection.laddr.ip in {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, process.cmdline()


def test_other_users_reach_no_file_of_ray(host, undisturbed):
    private = host.config.run_dir
    assert private.lstat().st_uid == os.getuid()
    assert stat.S_IMODE(private.lstat().st_mode) == 0o700
    written = []
    for process in host.below():
        with suppress(psutil.Error):
            written += [Path(file.path) for file in process.open_files() if file.mode != "r"]
            written += [
                Path(connection.laddr)
                for connection in process.net_connections("unix")
                if str(connection.laddr).startswith("/")
            ]
    assert len(written) > 20  # logs and sockets
    own = (private, host.config.data_dir, host.log)
    assert {path for path in written if not any(path.is_relative_to(folder) for folder in own)} == set()
    (session,) = host.config.ray_dir.glob("session_2*")
    assert (session / "sockets" / "raylet").is_socket()


@pytest.mark.parametrize("victim", ["EnvWorkerProcess", "PoolProcess", "SchedulerProcess", "host"])
def test_a_job_ends_with_the_same_bits_when_a_process_is_killed_at_step_3(host, undisturbed, victim):
    job_id = host.submit()
    host.until(lambda: host.service.job(job_id).step >= 3)
    if victim == "host":
        below = host.below()
        host.find("EnvWorkerProcess").suspend()  # it hears nothing from Ray
        host.process.kill()
        host.process.wait()
        # By themselves, as nobody is left to end them.
        host.until(lambda: not any(is_alive(process) for process in below))
        host.start()
    else:
        host.find(victim).kill()
    assert host.final_weights(job_id) == undisturbed
    warnings = [e.body for e in host.tenant.events_after(job_id, 0, 1000) if e.body.type == "warning"]
    assert {warning.name for warning in warnings} <= {"lockstep_broken", "environment_crashed"}
    ends = [
        e for e in host.tenant.events_after(job_id, 0, 1000) if e.body.type == "state" and e.body.state.final
    ]
    assert len(ends) == 1


@pytest.mark.parametrize("kind", ["sft", "preference"])
def test_a_job_on_written_data_ends_with_the_same_bits_when_its_pool_is_killed(host, kind):
    undisturbed = host.final_weights(host.submit_written(kind))
    job_id = host.submit_written(kind)
    host.until(lambda: host.service.job(job_id).step >= 10)
    host.find("PoolProcess").kill()
    assert host.final_weights(job_id) == undisturbed
    assert host.service.job(job_id).attempt == 2


def test_ranks_are_actors_whose_death_costs_no_step_and_that_end_with_their_pool(tmp_path):
    host = Host(tmp_path, learner_ranks=2, learner_divide_from=1)
    try:
        # Few and small steps: every one of them is four times as slow with two ranks on two cores.
        short = {"adapter": {"kind": "full"}, "steps": 12, "batch_size": 8, "checkpoint_every": 3}
        undisturbed = host.final_weights(host.submit_written("sft", **short))
        job_id = host.submit_written("sft", **short)
        host.until(lambda: host.service.job(job_id).step >= 4)
        first = host.named("RankActor")
        assert len(first) == 2
        first[1].kill()
        assert host.final_weights(job_id) == undisturbed
        warnings = [e.body for e in host.tenant.events_after(job_id, 0, 1000) if e.body.type == "warning"]
        # What is usual is learned anew after a resume, so that another step may stand out.
        (lost,) = [warning for warning in warnings if not warning.name.endswith("_spike")]
        assert lost.name == "rank_lost"
        # Ray starts both at a time, so either may be the first of the processes.
        assert re.search(rf"rank [01] ended with process {first[1].pid}\b", lost.message)
        second = host.named("RankActor")
        assert len(second) == 2
        assert {rank.pid for rank in first}.isdisjoint(rank.pid for rank in second)

        second[0].suspend()  # it hears neither its pool's end nor Ray
        host.find("PoolProcess").kill()
        host.until(lambda: not any(rank.is_running() for rank in second))
    finally:
        assert host.stop() == 0
        host.store.close()
