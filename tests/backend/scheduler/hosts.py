"""A scheduler's host in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from contextlib import suppress

import psutil
import pytest

from backend.catalog.models import load_renderer_bundle, resolve_model
from backend.config import ServiceConfig
from backend.processes import quick_start
from backend.store.store import Store
from backend.store.uploads import Uploads
from tests.leftovers import belonging_to
from tinkergym.agent.renderer import Renderer
from tinkergym.algorithms import GRPO
from tinkergym.datasets.prepare import prepare
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import EnvironmentRef, Sampling
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.parsing import parse_spec
from tinkergym.tasks import SequenceTasks

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
        # A test may start it again, for those that come after.
        with belonging_to("module"), self.log.open("ab") as output:
            self.process = subprocess.Popen(
                quick_start.command("backend.scheduler.scheduler_host"),
                env={**os.environ, **self.config.environment(), "CANARY_KEY": "1", "PACK_KEY": "1"},
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

    def submit(self, *, deterministic: bool = True) -> str:
        spec = RLSpec(
            environment=EnvironmentRef(id="board/TicTacToeVs-v0"),
            algorithm=GRPO(group_size=8, groups_per_step=8),
            sampling=Sampling(max_turn_tokens=8),
            steps=STEPS,
            seed=3,
            deterministic=deterministic,
            checkpoint_every=2,
        )
        return self.tenant.create_job(spec, {}).job_id

    def submit_written(self, kind: str, **settings) -> str:
        """A job on written data, with a checkpoint now and then."""
        directory = resolve_model("nano", self.config.model_paths, allow_any=False)
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
        return self.tenant.create_job(parse_spec(settings), {}).job_id

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
