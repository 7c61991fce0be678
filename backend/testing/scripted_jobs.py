"""Jobs without a learner: they issue episodes, accept results and count steps, in the real store."""

from __future__ import annotations

import hashlib
import threading
import time
from dataclasses import dataclass, field

from backend.episodes.boards import Boards
from backend.episodes.episode_board import EpisodeBoard
from backend.episodes.episode_requests import step_requests
from backend.episodes.job_board import JobBoard
from backend.episodes.played import Played
from backend.jobs.step_report import episodes_to_read, failure_warnings, statistics, too_many_failures
from backend.learner.sequences import TokenLimits
from backend.store.blobs import Blobs, new_checkpoint_key
from backend.store.store import JobLease, Store
from backend.testing.scripted_catalog import VOCABULARY
from tinkergym.schema.episodes import EpisodeResult, LeaseReply, LeaseRequest, SubmitReply, SubmitRequest
from tinkergym.schema.events import (
    CheckpointView,
    ErrorView,
    EvaluationEvent,
    Event,
    EventBody,
    JobState,
    StepEvent,
)
from tinkergym.schema.ids import PolicyRef, policy_of
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.summaries import JobQuery

POOL = "scripted"
_LEASE_SECONDS = 86_400.0
_ALL = 1_000_000
_WEIGHTS = ("adapter_model.safetensors", "model.safetensors")


@dataclass
class ScriptedJob:
    """One job, and who plays it."""

    job_id: str
    store: Store
    tenant: str
    lease: JobLease | None = None
    """None while no worker has the job."""
    workers: set[str] = field(default_factory=set)
    left: list[str] = field(default_factory=list)
    """Workers that announced their end."""
    leased: list[str] = field(default_factory=list)
    """Leases of the episodes that are being played."""
    history: list[list[EpisodeResult]] = field(default_factory=list)
    """Results of finished steps, in index order."""
    results: list[EpisodeResult] = field(default_factory=list)
    """Those of the current step."""

    @property
    def view(self) -> JobView:
        """The job as its owner sees it."""
        return self.store.service().job(self.job_id)

    @property
    def events(self) -> list[Event]:
        """Its log."""
        return self.store.tenant(self.tenant).events_after(self.job_id, 0, _ALL)


class ScriptedJobs:
    """All jobs of a scripted service. Thread-safe; `changed` is notified of every change."""

    def __init__(self, store: Store, tenant: str, job_files: Blobs, context_length: int) -> None:
        """Run the jobs of one tenant.

        Args:
            store: Where they are.
            tenant: Whose they are.
            job_files: Where their checkpoints are written.
            context_length: Most tokens of a sequence.
        """
        self.changed = threading.Condition(threading.RLock())
        self.files: dict[str, bytes] = {}
        """Of every checkpoint, by name; set them before training."""
        self.most_steps: int | None = None
        """A job without a client counts these steps and runs on; if None, it ends at once."""
        self.boards = Boards()
        self._store, self._tenant, self._files = store, tenant, job_files
        self._service = store.service()
        self._limits = TokenLimits(vocabulary=VOCABULARY, context_length=context_length)
        self._jobs: dict[str, ScriptedJob] = {}

    def create(self, spec: JobSpec) -> JobView:
        """Start a job without a client."""
        job_id = self._store.tenant(self._tenant).create_job(spec, {}).job_id
        self.schedule()
        return self.get(job_id).view

    def get(self, job_id: str) -> ScriptedJob:
        """Return a job."""
        with self.changed:
            self._store.tenant(self._tenant).get_job(job_id)
            return self._jobs.setdefault(job_id, ScriptedJob(job_id, self._store, self._tenant))

    def newest_first(self) -> list[JobView]:
        """Return the newest jobs."""
        tenant = self._store.tenant(self._tenant)
        return [tenant.get_job(one.job_id) for one in tenant.summaries(JobQuery()).jobs]

    def newest_version(self, policy: str) -> int:
        """Return the newest version of a policy; 0 for a model."""
        if not PolicyRef.is_meant(policy):
            return 0
        return self._service.job(PolicyRef.parse(policy).owner).policy_version

    def schedule(self) -> None:
        """Take up queued jobs, and end or pause those that should."""
        with self.changed:
            for queued in self._service.queued_jobs():
                self._take_up(self.get(queued.job_id))
            for job in [job for job in self._jobs.values() if job.lease is not None]:
                assert job.lease is not None
                asked = self._service.stop_request(job.job_id, time.time())
                if asked.cancel:
                    self._leave(job, JobState.CANCELLED, "cancelled by its owner")
                elif asked.pause:
                    self._service.pause(job.lease, asked.pause, asked=asked.asked)
                    self._put_down(job)
            self.changed.notify_all()

    def end(
        self, job_id: str, state: JobState, *, reason: str = "", error: ErrorView | None = None
    ) -> JobView:
        """Put a job into a final state, or let it wait for its client or run again."""
        with self.changed:
            job = self.get(job_id)
            if state is JobState.RUNNING:
                self._service.client_came(job_id)
                self.schedule()
            elif state is JobState.WAITING_FOR_CLIENT:
                assert job.lease is not None
                self._service.park(job.lease, reason)
                self._put_down(job)
            else:
                self._leave(job, state, reason, error)
            self.changed.notify_all()
            return job.view

    def say(self, job_id: str, *bodies: EventBody) -> None:
        """Add events to the log of a running job."""
        lease = self.get(job_id).lease
        assert lease is not None, f"{job_id} has ended"
        self._service.append_events(lease, list(bodies))

    def lease(self, job_id: str, request: LeaseRequest) -> LeaseReply:
        """Issue episodes, waiting for some if necessary."""
        self._note(job_id, request)
        reply = self.boards.lease(request, job_id)
        self._note(job_id, request)
        return reply

    def _note(self, job_id: str, request: LeaseRequest) -> None:
        with self.changed:
            job = self.get(job_id)
            job.workers.add(request.worker_id)
            if request.leaving and request.worker_id not in job.left:
                job.left.append(request.worker_id)
            job.leased = self.boards.playing(job_id)
            self.changed.notify_all()

    def vanished(self, job_id: str, worker_id: str) -> None:
        """Issue the episodes of a worker again whose connection broke."""
        self.boards.vanished(worker_id, job_id)

    def take_back(self, job_id: str) -> None:
        """Issue all leased episodes again, as if the workers so far had died; they get no more."""
        with self.changed:
            for worker_id in self.get(job_id).workers:
                self.boards.forget_worker(worker_id, end="not_needed")
            self.changed.notify_all()

    def submit(self, job_id: str, request: SubmitRequest) -> SubmitReply:
        """Accept results; the last one of a step finishes it."""
        reply = self.boards.submit(request, job_id)
        with self.changed:
            job = self.get(job_id)
            if job.lease is not None:
                step = job.view.step + 1
                played = self.boards.results(job_id, step)
                job.results = [result for _, result in played]
                job.leased = self.boards.playing(job_id)
                if self.boards.wait(job_id, step, 0.0) == "done":
                    self._finish_step(job, played)
            self.changed.notify_all()
        return reply

    # --- inside ---

    def _take_up(self, job: ScriptedJob) -> None:
        job.lease = self._service.acquire(job.job_id, POOL, _LEASE_SECONDS, time.time())
        if job.lease is None:
            return
        spec = job.lease.spec
        self._service.set_state(job.lease, JobState.RUNNING)
        if spec.played is None or spec.played.rollout == "server":
            while job.lease is not None and job.view.step != self.most_steps:
                self._finish_step(job, [])
            return
        board = EpisodeBoard(lease_seconds=30.0, by_group=spec.played.scored_by_group)
        self.boards.open(
            JobBoard(
                name=job.job_id,
                board=board,
                save=lambda _step, _results: None,
                for_server_workers=False,
                limits=self._limits,
            )
        )
        self._post(job)

    def _post(self, job: ScriptedJob) -> None:
        """Issue the episodes of the next step."""
        assert job.lease is not None and job.lease.spec.played is not None
        done = job.view.step
        self.boards.step_recorded(job.job_id, done)
        self.boards.publishing(job.job_id, done)
        requests = step_requests(job.job_id, job.lease.spec.played, done + 1)
        # Seeds that a test can foretell.
        seeded = [one.model_copy(update={"seed": 1000 * one.step + one.group}) for one in requests]
        self.boards.post(job.job_id, done + 1, seeded)
        job.results = []

    def _finish_step(self, job: ScriptedJob, played: Played) -> None:
        lease, view = job.lease, job.view
        assert lease is not None
        spec, step = lease.spec, view.step + 1
        self._service.take_updates(lease, step)
        job.history.append([result for _, result in played])
        if warnings := failure_warnings(played, step):
            self._service.append_events(lease, list(warnings))
            assert spec.played is not None
            if failure := too_many_failures(spec.played, played, step, warnings):
                error = ErrorView.model_validate(failure.to_wire())
                return self._leave(job, JobState.FAILED, str(failure), error)
        hashes = {
            agent: _digest(policy_of(job.job_id, agent, version=step).encode())
            for agent in spec.trained_agents
        }
        self._service.record_step(lease, _step_event(step, spec.steps, played), hashes)
        self._service.append_events(lease, [*episodes_to_read(played, step)])
        due = [
            one.name or one.environment or spec.environments_played()[0].id
            for one in spec.evaluations
            if one.is_due(step, last=spec.steps)
        ]
        if due or step == spec.steps or step % spec.checkpoint_every == 0:
            self._keep(job, lease, step)
        self._service.append_events(lease, [_evaluation(name, step) for name in due])
        if step == spec.steps:
            return self._leave(job, JobState.COMPLETED, f"step {step} of {step} is done")
        if spec.played is not None and spec.played.rollout != "server":
            self._post(job)
        return None

    def _keep(self, job: ScriptedJob, lease: JobLease, step: int) -> None:
        """Write a checkpoint of each policy."""
        for agent in lease.spec.trained_agents:
            key = new_checkpoint_key(job.job_id, agent, step, epoch=lease.epoch)
            for name, content in self.files.items():
                self._files.put(f"{key}/{name}", content)
            view = CheckpointView(
                step=step,
                policy_version=step,
                key=key,
                sha256=next((_digest(self.files[name]) for name in _WEIGHTS if name in self.files), "0" * 64),
                files={name: len(content) for name, content in self.files.items()},
                agent=agent,
            )
            self._service.add_checkpoint(lease, view, agent)

    def _leave(self, job: ScriptedJob, state: JobState, reason: str, error: ErrorView | None = None) -> None:
        if job.lease is not None:
            self._service.set_state(job.lease, state, reason, error)
        else:
            self._service.finish_unleased(job.job_id, state, reason, error)
        self._put_down(job)

    def _put_down(self, job: ScriptedJob) -> None:
        job.lease, job.leased = None, []
        self.boards.close(job.job_id)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _evaluation(name: str, step: int) -> EvaluationEvent:
    """Return an evaluation without episodes, none better than the one before."""
    return EvaluationEvent(
        name=name, step=step, policy_version=step, episodes=0, failed_episodes=0, mean=None, best=True
    )


def _step_event(step: int, steps: int, played: Played) -> StepEvent:
    counted = statistics(played)
    return StepEvent(
        step=step,
        steps=steps,
        policy_version=step,
        reward_mean=counted.reward_mean,
        reward_std=counted.reward_std,
        loss=0.0,
        episodes=counted.episodes,
        failed_episodes=counted.failed_episodes,
        stop_reasons=counted.stop_reasons,
        sampled_tokens=counted.sampled_tokens,
        turns=counted.turns,
        tokens_per_second=0.0,
        step_seconds=0.0,
        sampling_seconds=0.0,
        learning_seconds=0.0,
        seconds_left=0.0,
        metrics={**counted.seat_metrics, **counted.environment_metrics},
    )
