"""Jobs whose policies are scripted: real loops, boards, players and store, but no pool, engine or learner."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from backend.config import ServiceConfig
from backend.episodes.boards import Boards
from backend.episodes.captured_tokens import CapturedTokens
from backend.errors import LeaseLostError
from backend.jobs.job_context import JobContext
from backend.jobs.job_control import JobControl
from backend.jobs.kinds import loop_of
from backend.jobs.step_clock import StepClock
from backend.policies.call_bell import CallBell
from backend.store.store import JobLease, Store
from tests.backend.lab import Written
from tests.backend.scripted_policy import LIMITS, Published, ScriptedPolicy
from tests.backend.watched_jobs import PATIENCE_SECONDS, Fickle, HeldLearner, WatchedJobs
from tinkergym.agent.renderer import Renderer
from tinkergym.agent.sampler import Sampler
from tinkergym.registration.games import make_playable
from tinkergym.rollout.executors import MakeEnv
from tinkergym.rollout.play_list import play
from tinkergym.schema.episodes import EpisodeRequest, EpisodeResult, LeaseRequest, SubmitRequest
from tinkergym.testing import byte_bundle
from tinkergym.testing.samplers import RandomTokenSampler

RENDERER = Renderer.from_bundle(byte_bundle())
_LEASE_SECONDS = 30.0
_LOOK_SECONDS = 0.002


class Worker:
    """Runs jobs as a pool does, a thread each."""

    def __init__(self, jobs: ScriptedJobs, name: str) -> None:
        self._jobs, self.name = jobs, name
        self.boards, self.bell = Boards(), CallBell()
        self.captured = CapturedTokens()
        self.published = Published(self.captured)
        self.controls: dict[str, JobControl] = {}
        self.threads: dict[str, threading.Thread] = {}
        self.policies: dict[str, dict[str, ScriptedPolicy]] = {}

    def start(self, job_id: str) -> None:
        if job_id in self.threads and self.threads[job_id].is_alive():
            return
        lease = self._jobs.service.acquire(job_id, self.name, _LEASE_SECONDS, time.time())
        if lease is not None:
            control = self.controls[job_id] = JobControl(self._wake)
            loop = loop_of(self._context(lease, control))
            thread = self.threads[job_id] = threading.Thread(target=loop.run, name=f"job-{job_id}")
            thread.start()

    def beat(self) -> None:
        """Do what a heartbeat does."""
        for job_id, control in self.controls.items():
            request = self._jobs.service.stop_request(job_id, time.time())
            if request.cancel:
                control.cancel()
            control.pause(request.pause, asked=request.asked)

    def die(self) -> None:
        """Leave everything as it is stored."""
        self._jobs.service.requeue_jobs_of(self.name, "it died")
        for control in self.controls.values():
            control.mark_lease_lost(LeaseLostError("it was killed"))
        self.close()

    def stop(self) -> None:
        """Return the jobs to the queue."""
        for control in self.controls.values():
            control.stop()
        self.close()

    def close(self) -> None:
        for thread in self.threads.values():
            thread.join(PATIENCE_SECONDS)
        self.boards.shut()

    def _wake(self) -> None:
        self.boards.wake()
        self.bell.ring()

    def _context(self, lease: JobLease, control: JobControl) -> JobContext:
        jobs, job_id = self._jobs, lease.job_id
        policies = {
            agent: jobs.policy_class(
                agent,
                lease,
                store=jobs.service,
                files=jobs.config.job_files,
                published=self.published,
                before_batch=jobs.before_batch,
            )
            for agent in jobs.service.policies_of(job_id)
        }
        self.policies[job_id] = policies
        return JobContext(
            lease=lease,
            spec=lease.spec,
            store=jobs.service,
            policies=policies,
            sampler=jobs.sampler,
            limits=LIMITS,
            boards=self.boards,
            bell=self.bell,
            control=control,
            clock=StepClock(lambda: 0.0, lambda: 0.0),
            files=jobs.config.job_files.below(job_id),
            all_files=jobs.config.job_files,
            uploads=jobs.config.uploads,
            lease_seconds=_LEASE_SECONDS,
            client_place_seconds=jobs.config.client_place_seconds,
            sleep_while_learning=jobs.config.sleep_while_learning,
            captured=self.captured,
            place={"engine": "scripted"},
            model_fingerprint="0" * 64,
        )


class ScriptedJobs(WatchedJobs):
    """A tenant's jobs, and the worker that runs them; another can take over."""

    policy_class = ScriptedPolicy

    def __init__(self, store: Store, config: ServiceConfig) -> None:
        super().__init__(store, config)
        self.learner: HeldLearner | None = None
        self.sampler: Sampler = RandomTokenSampler(256)
        self._numbers = itertools.count(1)
        self.start_worker()

    def before_batch(self) -> None:
        if self.learner is not None:
            self.learner.wait()

    # --- workers ---

    def start_worker(self) -> None:
        self.worker = Worker(self, f"{self.tenant_id}-{next(self._numbers)}")

    def replace_worker(self) -> None:
        """Kill the worker, and let another take its jobs."""
        self.worker.die()
        self.start_worker()

    def start_job(self, job_id: str) -> None:
        self.worker.start(job_id)

    def start(self, **settings: object) -> str:
        job_id = self.start_later(**settings)
        self.start_job(job_id)
        return job_id

    def take_over(self, job_id: str) -> None:
        """Kill the worker, and let another take this job."""
        self.replace_worker()
        self.start_job(job_id)

    def pass_time(self) -> None:
        self.worker.beat()
        threading.Event().wait(_LOOK_SECONDS)

    # --- playing ---

    def lease(
        self, job_id: str, most: int = 100, worker_id: str = "w", wait_seconds: float = 20.0
    ) -> list[EpisodeRequest]:
        request = LeaseRequest(worker_id=worker_id, max_episodes=most, wait_seconds=wait_seconds)
        return self.worker.boards.lease(request, job_id).episodes

    def play(self, requests: list[EpisodeRequest], make_env: MakeEnv = make_playable) -> list[EpisodeResult]:
        return list(self.playing(requests, make_env))

    def playing(
        self, requests: list[EpisodeRequest], make_env: MakeEnv = make_playable
    ) -> Iterator[EpisodeResult]:
        published = self.worker.published
        published.members |= {request.lease_id: request.index for request in requests}
        yield from play(requests, sampler=published, renderer=RENDERER, make_env=make_env)

    def submit(self, job_id: str, results: Sequence[EpisodeResult]) -> list[str]:
        request = SubmitRequest(worker_id="w", results=list(results))
        return self.worker.boards.submit(request, job_id).verdicts

    def play_step(self, job_id: str) -> list[EpisodeRequest]:
        requests = self.lease(job_id)
        assert set(self.submit(job_id, self.play(requests))) == {"accepted"}
        return requests

    def play_on(self, job_id: str) -> None:
        """Play until the job has ended."""

        def ended() -> bool:
            if requests := self.lease(job_id, wait_seconds=0.01):
                self.submit(job_id, self.play(requests))
            return self.state(job_id).final

        self.until(job_id, ended)


@pytest.fixture(scope="session")
def jobs_store(tmp_path_factory) -> Iterator[Store]:
    store = Store.open(f"sqlite:///{tmp_path_factory.mktemp('scripted') / 'store.sqlite3'}")
    yield store
    store.close()


@pytest.fixture
def make_jobs(jobs_store, tmp_path, register_environment) -> Iterator[Callable[..., ScriptedJobs]]:
    """Make scripted jobs with settings of their own."""
    register_environment("test/Fickle-v0", Fickle)
    made: list[ScriptedJobs] = []

    def make(name: str = "", **settings: object) -> ScriptedJobs:
        common = {"client_place_seconds": 3600.0, "data_dir": tmp_path / name}
        made.append(ScriptedJobs(jobs_store, ServiceConfig(**{**common, **settings})))
        return made[-1]

    yield make
    for jobs in made:
        if jobs.learner is not None:
            jobs.learner.go_on.set()
        jobs.worker.stop()


@pytest.fixture
def jobs(make_jobs) -> ScriptedJobs:
    """A tenant whose jobs train scripted policies."""
    return make_jobs()


@pytest.fixture
def written_jobs(jobs, written_in) -> Written:
    """Starts jobs of this tenant on written data."""
    return written_in(jobs)


@pytest.fixture
def held(jobs) -> HeldLearner:
    """Holds the learner of this tenant's jobs."""
    jobs.learner = HeldLearner()
    return jobs.learner
