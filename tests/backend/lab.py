"""A real pool worker on the nano model, in this process; the tests play the episodes over its socket."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from backend.catalog.models import load_renderer_bundle, resolve_model
from backend.config import ServiceConfig
from backend.learner.learner import Learner
from backend.store.store import Store
from backend.store.uploads import Uploads
from backend.worker_url import any_port, unix_url
from backend.workers.pool_worker import PoolWorker
from tests.backend.watched_jobs import PATIENCE_SECONDS, Fickle, HeldLearner, WatchedJobs
from tests.leftovers import belonging_to
from tinkergym.agent.renderer import Renderer
from tinkergym.datasets.prepare import prepare
from tinkergym.registration.games import make_playable
from tinkergym.remote.rollout_transport import HttpRolloutTransport, Routes
from tinkergym.remote.transport import Connection
from tinkergym.rollout.play_list import play
from tinkergym.rollout.rollout_worker import RolloutWorker
from tinkergym.schema.episodes import EpisodeRequest, EpisodeResult, LeaseReply, LeaseRequest, SubmitRequest
from tinkergym.schema.events import JobState
from tinkergym.schema.parsing import parse_spec
from tinkergym.schema.sampling import Completion, SampleRequest
from tinkergym.schema.uploaded_data import DataKind
from tinkergym.tasks import SequenceTasks

TOKEN = "pool-token"


class _AsThroughTheGateway(HttpRolloutTransport):
    """Says when the job has ended, which a pool does not know: a worker that plays for it ends at once."""

    def __init__(self, connection: Connection, routes: Routes, state: Callable[[], JobState]) -> None:
        super().__init__(connection, routes)
        self._state = state

    def lease(self, request: LeaseRequest) -> LeaseReply:
        if (state := self._state()).final:
            return LeaseReply(episodes=[], lost=request.renew, job_state=state)
        return super().lease(request).model_copy(update={"job_state": self._state()})


class Site:
    """A service's store and its current pool worker, for one test after the other."""

    def __init__(self, config: ServiceConfig, scope: str = "function") -> None:
        """What a worker starts may stay until a `scope` ends."""
        config.run_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.config, self._scope = config, scope
        self.store = Store.open(config.store_url)
        self.service = self.store.service()
        self.pool: PoolWorker | None = None
        self.url = ""
        self.pools = 0

    @property
    def pool_id(self) -> str:
        return f"pool-{self.pools}"

    def start_pool(self) -> None:
        self.pools += 1
        sockets = self.config.worker_transport == "unix"
        url = unix_url(self.config.run_dir / f"{self.pool_id}.sock") if sockets else any_port()
        with contextlib.nullcontext() if self._scope == "function" else belonging_to(self._scope):
            self.pool = PoolWorker(self.config, pool_id=self.pool_id, model="nano", url=url, token=TOKEN)
        self.url = self.pool.url

    def end_jobs(self) -> None:
        """Return unfinished jobs to the queue, and wait until their threads have ended."""
        if self.pool is not None:
            jobs = list(self.pool.jobs.threads.values())
            for pulse in list(self.pool.jobs.pulses.values()):
                pulse.control.stop()
            for job in jobs:
                job.join(PATIENCE_SECONDS)
        for held in self.service.held_jobs():  # by a worker that did not survive, or that never was
            self.service.requeue_jobs_of(held.worker_id, "the test is over")

    def close_pool(self, *, in_peace: bool) -> None:
        """End the worker: as a kill does, so that it saves nothing more, or in peace as a restart does."""
        if self.pool is None:
            return
        pool, self.pool = self.pool, None
        jobs = list(pool.jobs.threads.values())
        if not in_peace:
            self.service.requeue_jobs_of(self.pool_id, "it died")
        pool.close()
        # A worker gives its jobs a few seconds and then dies, and they with it. Here its threads live on: one
        # that still writes a checkpoint to a slow disk has the job yet, and the next worker would not get it.
        for job in jobs:
            job.join(PATIENCE_SECONDS)

    def close(self) -> None:
        self.close_pool(in_peace=False)
        self.store.close()


class Lab(WatchedJobs):
    """A tenant of a service for one test, and the service's current pool worker; a new one can take over."""

    def __init__(self, site: Site) -> None:
        super().__init__(site.store, site.config)
        self.site = site
        if site.pool is None:
            site.start_pool()
        self.connection = Connection(site.url, token=TOKEN)

    @property
    def pool(self) -> PoolWorker:
        assert self.site.pool is not None, "it was closed"
        return self.site.pool

    def start_pool(self) -> None:
        self.site.start_pool()
        self.connection = Connection(self.site.url, token=TOKEN)

    def replace_pool(self, *, in_peace: bool = False) -> None:
        """End the worker, and let another take its jobs; see `Site.close_pool`."""
        self.close_pool(in_peace=in_peace)
        self.start_pool()

    def take_over(self, job_id: str) -> None:
        """Kill the worker, and let another take this job."""
        self.replace_pool()
        self.start_job(job_id)

    def close_pool(self, *, in_peace: bool = False) -> None:
        """End the worker; see `Site.close_pool`."""
        self.connection.close()
        self.site.close_pool(in_peace=in_peace)

    def leave(self) -> None:
        """End what the test has left."""
        self.site.end_jobs()
        self.connection.close()

    def start_job(self, job_id: str) -> None:
        self.pool.start_job(job_id)

    def start(self, **settings: object) -> str:
        job_id = self.start_later(**settings)
        self.pool.start_job(job_id)
        return job_id

    # --- playing ---

    def transport(self, job_id: str) -> HttpRolloutTransport:
        return HttpRolloutTransport(self.connection, Routes.of_pool(job_id))

    def lease(
        self, job_id: str, most: int = 100, worker_id: str = "w", wait_seconds: float = 20.0
    ) -> list[EpisodeRequest]:
        request = LeaseRequest(worker_id=worker_id, max_episodes=most, wait_seconds=wait_seconds)
        return self.transport(job_id).lease(request).episodes

    def playing(self, requests: list[EpisodeRequest]) -> Iterator[EpisodeResult]:
        """Play and yield each result as its episode ends."""
        transport = self.transport(requests[0].job_id)
        sampler = transport.sampler()
        renderer = Renderer.from_bundle(transport.renderer("nano"))
        yield from play(requests, sampler=sampler, renderer=renderer, make_env=make_playable)
        sampler.close()

    def play(self, requests: list[EpisodeRequest]) -> list[EpisodeResult]:
        return list(self.playing(requests))

    def submit(self, job_id: str, results: list[EpisodeResult]) -> list[str]:
        request = SubmitRequest(worker_id="w", results=results)
        return self.transport(job_id).submit(request).verdicts

    def play_step(self, job_id: str) -> list[EpisodeRequest]:
        requests = self.lease(job_id)
        # Each at once: in lockstep the longer episodes wait for the results of those that ended.
        for result in self.playing(requests):
            assert self.submit(job_id, [result]) == ["accepted"]
        return requests

    def play_on(self, job_id: str) -> None:
        """Play until the job has ended."""
        transport = _AsThroughTheGateway(self.connection, Routes.of_pool(job_id), lambda: self.state(job_id))
        worker = RolloutWorker(transport, make_env=make_playable)
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            self.until(job_id, lambda: self.state(job_id).final)
        finally:
            worker.stop()
            thread.join()

    def that_learn_the_same(
        self, jobs: Sequence[Mapping[str, object]], steps: int = 2
    ) -> list[list[Mapping[str, object]]]:
        """Run a job with each of these settings; return those that end with equal weights, if any do.

        Two steps, so that what depends on the step before shows; schedules need a third.
        """
        learned: dict[str, list[Mapping[str, object]]] = {}
        for settings in jobs:
            # In lockstep, so that nothing but the setting can differ.
            job_id = self.start(deterministic=True, steps=steps, **settings)
            self.play_on(job_id)
            assert self.state(job_id) is JobState.COMPLETED
            learned.setdefault(self.weights(job_id, steps), []).append(settings)
        return [same for same in learned.values() if len(same) > 1]


class Written:
    """Jobs on written data: rendered and stored as client and gateway do it, without HTTP."""

    def __init__(self, lab: WatchedJobs) -> None:
        self.lab = lab
        directory = resolve_model("nano", lab.config.model_paths, allow_any=False)
        self.renderer = Renderer.from_bundle(load_renderer_bundle("nano", directory))

    def upload(self, kind: DataKind, rows: Sequence[Mapping[str, object]], tenant: str = "") -> str:
        ready = prepare(SequenceTasks(list(rows)), self.renderer, kind=kind)
        uploads = Uploads(self.lab.config.uploads, tenant or self.lab.tenant_id)
        for name, body in ready.bodies.items():
            uploads.add_chunk(name, body, most_bytes=2**24)
        return uploads.complete(ready.manifest, most_bytes=2**24).data_id

    def start_later(self, kind: DataKind, rows: Sequence[Mapping[str, object]], **settings: object) -> str:
        defaults = {"steps": 4, "batch_size": 2, "checkpoint_every": 100}
        spec = {**defaults, **settings, "kind": kind, "data": self.upload(kind, rows)}
        return self.lab.tenant.create_job(parse_spec(spec), {}).job_id

    def start(self, kind: DataKind, rows: Sequence[Mapping[str, object]], **settings: object) -> str:
        job_id = self.start_later(kind, rows, **settings)
        self.lab.start_job(job_id)
        return job_id

    def run(self, kind: DataKind, rows: Sequence[Mapping[str, object]], **settings: object) -> str:
        job_id = self.start(kind, rows, **settings)
        self.lab.until(job_id, lambda: self.lab.state(job_id).final)
        assert self.lab.state(job_id) is JobState.COMPLETED, self.lab.events(job_id, "state")[-1]
        return job_id

    def answer(self, policy: str, prompt: str) -> str:
        """What a policy finds likeliest to say."""
        arrived: list[Completion] = []
        request = SampleRequest(
            request_id="r",
            policy=policy,
            prompt_ids=self.renderer.start([{"role": "user", "content": prompt}]),
            max_tokens=24,
            temperature=0,
            stop_ids=self.renderer.stop_ids,
        )
        sampler = self.lab.transport("").sampler()
        sampler.submit([request], arrived.extend)
        self.lab.until(policy, lambda: arrived)
        sampler.close()
        return self.renderer.decode_answer(arrived[0].token_ids)


@pytest.fixture
def written_in():
    """Make what starts jobs on written data in a lab."""
    return Written


@pytest.fixture
def written(lab):
    return Written(lab)


def _config(folder: Path, **settings: object) -> ServiceConfig:
    common = {
        "torch_threads": 1,
        "heartbeat_seconds": 0.5,
        "lease_seconds": 30.0,
        "client_place_seconds": 3600.0,
    }
    return ServiceConfig(data_dir=folder, **{**common, **settings})


@pytest.fixture
def make_lab(tmp_path, register_environment):
    """Make labs with a worker, settings and a folder of their own."""
    register_environment("test/Fickle-v0", Fickle)
    threads = torch.get_num_threads()
    made: list[Lab] = []

    def make(name: str = "", **settings: object) -> Lab:
        made.append(Lab(Site(_config(tmp_path / name, **settings))))
        return made[-1]

    yield make
    for lab in made:
        lab.connection.close()
        lab.site.close()
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def warm_site(tmp_path_factory):
    """The worker of all tests that change neither its settings nor its insides."""
    site = Site(_config(tmp_path_factory.mktemp("warm")), scope="session")
    yield site
    site.close()


@pytest.fixture
def lab(warm_site, register_environment):
    register_environment("test/Fickle-v0", Fickle)
    lab = Lab(warm_site)
    yield lab
    lab.leave()


@pytest.fixture
def publishes_wrongly(lab, monkeypatch):
    """From now on the engine holds other weights of a version (None: of every one) than it says."""

    def begin(version=None):
        publish = lab.pool.own.engine.publish

        def publish_other(policy, published, weights, **settings):
            sha256 = publish(policy, published, weights, **settings)
            if version in (None, published):
                wrong = {name: tensor + 0.05 for name, tensor in weights.tensors.items()}
                publish(policy, published, replace(weights, tensors=wrong))
            return sha256

        monkeypatch.setattr(lab.pool.own.engine, "publish", publish_other)

    return begin


@pytest.fixture
def learner(lab, monkeypatch):
    held, forward_backward = HeldLearner(), Learner.forward_backward

    def when_allowed(self, *arguments, **settings):
        held.wait()
        return forward_backward(self, *arguments, **settings)

    monkeypatch.setattr(Learner, "forward_backward", when_allowed)
    yield held
    held.go_on.set()
