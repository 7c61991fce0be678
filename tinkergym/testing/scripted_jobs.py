"""Jobs without a learner: they issue episodes, accept results, and count steps. No input or output."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tinkergym.errors import ConflictError, NotFoundError, UnknownEnvironmentError
from tinkergym.schema.episodes import (
    EpisodeRequest,
    EpisodeResult,
    LeaseReply,
    LeaseRequest,
    SeatPlan,
    SubmitReply,
    TablePlayer,
)
from tinkergym.schema.events import (
    CheckpointView,
    ErrorView,
    Event,
    EventBody,
    JobState,
    StateEvent,
    UpdateEvent,
)
from tinkergym.schema.ids import EpisodeId, JobRef, policy_of
from tinkergym.schema.jobs.distillation import DistillationSpec
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.jobs.view import DeletedJob, InstalledPack, JobView
from tinkergym.schema.opponents import Scripted
from tinkergym.schema.steering import changes_to, settings_now
from tinkergym.schema.updates import SettingsUpdate
from tinkergym.testing.scripted_steps import evaluation_event, failure_warnings, step_event, too_many_failures
from tinkergym.trajectory.trajectory import ONLY_AGENT


@dataclass
class ScriptedJob:
    """One job: its view, its log, and the episodes of its current step."""

    view: JobView
    events: list[Event] = field(default_factory=list)
    waiting: list[EpisodeRequest] = field(default_factory=list)
    leased: dict[str, EpisodeRequest] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    """Workers that announced their end."""
    results: list[EpisodeResult] = field(default_factory=list)
    """Of the current step."""
    history: list[list[EpisodeResult]] = field(default_factory=list)
    """Of finished steps."""
    checkpoints: list[CheckpointView] = field(default_factory=list)
    workers: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    """Workers that count as gone."""


class ScriptedJobs:
    """All jobs of a scripted service. Thread-safe; `changed` is notified of every change."""

    def __init__(self, environments: Sequence[str] = ()) -> None:
        """Set the environments for server-side jobs; such jobs, and jobs on datasets, end at once."""
        self.changed = threading.Condition(threading.RLock())
        self._environments = frozenset(environments)
        self._jobs: dict[str, ScriptedJob] = {}
        self._keys: dict[str, str] = {}
        self._lease_numbers = itertools.count(1)

    @property
    def known(self) -> list[str]:
        """The ids that server-side jobs may name."""
        return sorted(self._environments)

    def create(
        self, spec: JobSpec, idempotency_key: str, *, client_packs: Sequence[InstalledPack] = ()
    ) -> JobView:
        """Start a job."""
        with self.changed:
            if idempotency_key in self._keys:
                return self._jobs[self._keys[idempotency_key]].view
            played = spec.played
            if played and played.rollout == "server":
                for environment in played.own_environments.values():
                    if environment.id not in self._environments:
                        raise UnknownEnvironmentError(
                            f"there is no environment {environment.id!r}", field="environment.id"
                        )
            job_id = f"job-{len(self._jobs) + 1}"
            now = time.time()
            view = JobView(
                job_id=job_id,
                spec=spec,
                state=JobState.QUEUED,
                created_at=now,
                updated_at=now,
                attempt=1,
                client_packs=list(client_packs),
            )
            job = self._jobs[job_id] = ScriptedJob(view)
            self._keys[idempotency_key] = job_id
            self._enter(job, JobState.RUNNING)
            if not played or played.rollout == "server":
                for _ in range(spec.steps):
                    self._finish_step(job)
            else:
                self._issue(job)
            return job.view

    def _refuse_unknown(self, environment_id: str) -> None:
        if environment_id not in self._environments:
            raise UnknownEnvironmentError(
                f"there is no environment {environment_id!r}", field="environment.id"
            )

    def get(self, job_id: str) -> ScriptedJob:
        """Return a job."""
        with self.changed:
            if job_id not in self._jobs:
                raise NotFoundError(f"there is no job {job_id!r}")
            return self._jobs[job_id]

    def newest_first(self) -> list[JobView]:
        """Return all jobs."""
        with self.changed:
            return [job.view for job in reversed(self._jobs.values())]

    def end(
        self, job_id: str, state: JobState, *, reason: str = "", error: ErrorView | None = None
    ) -> JobView:
        """Put a job into a final state."""
        with self.changed:
            job = self.get(job_id)
            if not job.view.state.final:
                self._enter(job, state, reason=reason, error=error)
            return job.view

    def pause(self, job_id: str) -> JobView:
        """Pause a job at once; its episodes are not issued until `resume`."""
        with self.changed:
            job = self.get(job_id)
            if job.view.state.final:
                raise ConflictError(f"{job_id} has ended ({job.view.state}) and cannot be paused")
            if job.view.state is not JobState.PAUSED:
                self._enter(job, JobState.PAUSED, reason="paused on request")
            return job.view

    def resume(self, job_id: str) -> JobView:
        """Let a paused job continue."""
        with self.changed:
            job = self.get(job_id)
            if job.view.state is JobState.PAUSED:
                self._enter(job, JobState.RUNNING)
            return job.view

    def change_settings(self, job_id: str, settings: Mapping[str, object]) -> JobView:
        """Change settings from the next step on."""
        with self.changed:
            job = self.get(job_id)
            changes = changes_to(job.view.spec, settings)
            if changes:
                body = UpdateEvent(changes=changes, from_step=job.view.step + 1)
                update = SettingsUpdate(changes=changes, from_step=job.view.step + 1)
                self._update(
                    job, spec=settings_now(job.view.spec, [update]), updates=[*job.view.updates, update]
                )
                self._emit(job, body)
            return job.view

    def delete(self, job_id: str) -> DeletedJob:
        """Delete a job that has ended."""
        with self.changed:
            job = self.get(job_id)
            if not job.view.state.final:
                raise ConflictError(f"{job_id} is {job.view.state}")
            del self._jobs[job_id]
            return DeletedJob(job_id=job_id, bytes=sum(sum(c.files.values()) for c in job.checkpoints))

    def lease(self, job_id: str, request: LeaseRequest) -> LeaseReply:
        """Issue episodes, waiting for some if necessary."""
        with self.changed:
            job = self.get(job_id)
            lost = [lease_id for lease_id in request.renew if lease_id not in job.leased]
            job.workers.add(request.worker_id)
            if request.leaving:
                job.left.append(request.worker_id)
                self.changed.notify_all()
                return LeaseReply(episodes=[], job_state=job.view.state)
            self.changed.notify_all()
            if request.max_episodes:
                self.changed.wait_for(
                    lambda: (
                        (job.waiting and job.view.state is not JobState.PAUSED)
                        or job.view.state.final
                        or request.worker_id in job.silent
                    ),
                    timeout=request.wait_seconds,
                )
            if job.view.state.final or request.worker_id in job.silent:
                return LeaseReply(episodes=[], lost=request.renew, job_state=job.view.state)
            if job.view.state is JobState.PAUSED:
                return LeaseReply(episodes=[], lost=lost, job_state=job.view.state)
            taken, job.waiting = job.waiting[: request.max_episodes], job.waiting[request.max_episodes :]
            job.leased |= {episode.lease_id: episode for episode in taken}
            return LeaseReply(episodes=taken, lost=lost, job_state=job.view.state)

    def take_back(self, job_id: str) -> None:
        """Issue all leased episodes again, as if the workers so far had fallen silent; they get no more."""
        with self.changed:
            job = self.get(job_id)
            job.silent |= job.workers
            again, job.leased = list(job.leased.values()), {}
            job.waiting += [e.model_copy(update={"lease_id": self._new_lease_id()}) for e in again]
            self.changed.notify_all()

    def submit(self, job_id: str, results: Sequence[EpisodeResult]) -> SubmitReply:
        """Accept results; the last one of a step finishes it."""
        with self.changed:
            job = self.get(job_id)
            verdicts = [self._take(job, result) for result in results]
            if not job.waiting and not job.leased and not job.view.state.final:
                self._finish_step(job)
            return SubmitReply(verdicts=verdicts)

    def _take(self, job: ScriptedJob, result: EpisodeResult) -> str:
        if any(known.episode_id == result.episode_id for known in job.results):
            return "duplicate"
        if job.leased.pop(result.lease_id, None) is None:
            return "stale"
        job.results.append(result)
        return "accepted"

    def _issue(self, job: ScriptedJob) -> None:
        spec, step = job.view.spec.played, job.view.step + 1
        assert spec
        job.results = []
        job.waiting = [
            EpisodeRequest(
                job_id=job.view.job_id,
                episode_id=str(EpisodeId(JobRef(job.view.job_id), step, index)),
                step=step,
                index=index,
                group=index // spec.groups.size,
                environment=spec.environment_at(step, index // spec.groups.size),
                seed=1000 * step + index // spec.groups.size,
                seats=_seats(job.view, spec, index),
                limits=spec.limits,
                lease_id=self._new_lease_id(),
                lease_seconds=30.0,
            )
            for index in range(spec.groups.episodes)
        ]
        self.changed.notify_all()

    def _new_lease_id(self) -> str:
        return f"lease-{next(self._lease_numbers)}"

    def _finish_step(self, job: ScriptedJob) -> None:
        spec, step = job.view.spec, job.view.step + 1
        job.history.append(job.results)
        for warning in failure_warnings(job.results, step):
            self._emit(job, warning)
        played = spec.played
        if played and (failure := too_many_failures(played, job.results, step)):
            error = ErrorView.model_validate(failure.to_wire())
            self._enter(job, JobState.FAILED, reason=str(failure), error=error)
            return
        self._update(job, step=step, policy_version=step)
        self._emit(job, step_event(job.view, job.results))
        if played:
            for wanted in played.evaluate:
                if wanted.is_due(step, last=spec.steps):
                    self._emit(job, evaluation_event(job.view, played.name_of(wanted)))
        if step == job.view.spec.steps:
            self._enter(job, JobState.COMPLETED)
        elif played and played.rollout != "server":
            self._issue(job)

    def _enter(
        self, job: ScriptedJob, state: JobState, *, reason: str = "", error: ErrorView | None = None
    ) -> None:
        self._update(job, state=state, reason=reason, error=error)
        self._emit(job, StateEvent(state=state, reason=reason, error=error, attempt=1))

    def _update(self, job: ScriptedJob, **changes: object) -> None:
        job.view = job.view.model_copy(update={**changes, "updated_at": time.time()})

    def _emit(self, job: ScriptedJob, body: EventBody) -> None:
        seq = len(job.events) + 1
        job.events.append(Event(seq=seq, job_id=job.view.job_id, time=time.time(), body=body))
        job.view = job.view.model_copy(update={"last_seq": seq})
        self.changed.notify_all()


def _seats(view: JobView, spec: RLSpec | DistillationSpec, index: int) -> dict[str, SeatPlan]:
    """Return the players of an episode: in a game the policies in training, and the game's own players."""
    seat = SeatPlan(
        policy=view.job_id,
        policy_version=view.policy_version,
        model=spec.rendered_by(view.job_id),
        sampling_seed=index,
        sampling=spec.sampling,
        system_prompt=spec.system_prompt,
    )
    if not spec.seats:
        return {ONLY_AGENT: seat}
    tables = {
        agent: TablePlayer(name=one.name) for agent, one in spec.seats.items() if isinstance(one, Scripted)
    }
    policies = {agent: policy_of(view.job_id, spec.policy_at(agent)) for agent in spec.learning_seats}
    return {
        agent: seat.model_copy(
            update={
                "policy": policies.get(agent, ""),
                "table": tables.get(agent),
                "trained": agent in policies,
                "tools": spec.tools_of(spec.policy_at(agent)) if agent in policies else None,
            }
        )
        for agent in spec.seats
    }
