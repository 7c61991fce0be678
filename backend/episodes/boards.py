"""The boards of all jobs in this process, and the waiting of workers and job loops.

Thread-safe. One condition serves all boards, because an environment worker waits for an episode of any job.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from backend.episodes.env_worker_end import WorkerEnd
from backend.episodes.episode_board import EpisodeBoard
from backend.episodes.record_check import images_of, require_sound
from backend.errors import LeaseLostError
from backend.learner.sequences import TokenLimits
from tinkergym.bounded_dict import BoundedDict
from tinkergym.errors import EnvironmentCrashedError, StorageFullError, TinkerGymError
from tinkergym.schema.episodes import (
    EpisodeRequest,
    EpisodeResult,
    LeaseReply,
    LeaseRequest,
    SubmitReply,
    SubmitRequest,
)
from tinkergym.schema.events import JobState
from tinkergym.schema.ids import EpisodeId, JobRef

Verdict = Literal["accepted", "duplicate", "stale"]
Save = Callable[[int, Sequence[EpisodeResult]], object]
"""Stores a step's results; returns when they are durable."""

MOST_WORKER_DEATHS = 5
"""Deaths in one step after which the job fails, instead of killing workers forever."""

_DEAD_REMEMBERED = 1000
"""The number of remembered dead workers. A call waits for seconds, during which fewer die."""

_CRASHING_REMEMBERED = 1000
"""The number of remembered pairs of a tenant and an environment."""

_LOOK_SECONDS = 0.25
"""How often waiting checks the clock, because leases expire silently."""


@dataclass(slots=True)
class BoardEntry:
    """One job's board with what the workers need to know about the job."""

    board: EpisodeBoard
    save: Save
    for_server_workers: bool
    """Whether workers that serve any job may have these episodes."""
    limits: TokenLimits
    """Limits of the job's base model."""
    other_limits: Mapping[str, TokenLimits] = field(default_factory=dict)
    """Limits of further base models that play some seats, by name."""
    job_id: str = ""
    """The job, whichever of its boards this is."""
    state: JobState = JobState.RUNNING
    last_contact: float = field(default=0.0)
    """When a worker of this job was last heard from, on the boards' clock."""
    owner: str = ""
    """Workers that serve any job only serve one owner: the tenant, or the job itself."""
    tenant: str = ""
    environment: str = ""
    """Id of the environment of its episodes."""
    isolated: bool = False
    """Whether a worker died in this environment for this tenant: since then each environment has its own
    process."""
    crash_untold: bool = False
    """Whether the job must still be told."""
    worker_deaths: int = 0
    """Environment workers that died in a call of this job's environment in this step."""
    background: bool = False
    """Whether workers get these episodes only after the jobs' own."""
    error: TinkerGymError | None = None
    """Why the rollout cannot continue; raised where the job waits for it."""
    left: BoundedDict[str, None] = field(default_factory=lambda: BoundedDict(_DEAD_REMEMBERED))
    """Workers that announced their end, in order."""
    recorded_step: int = 0
    """Newest step recorded in the store: results are acknowledged once it knows the version that sampled
    them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvWorkerReport:
    """The state of the workers that serve any job."""

    silent: list[str]
    """Hanging workers: alive, but without renewals or requests."""
    owners: Mapping[str, str]
    """Worker -> the owner whose jobs it plays. New workers are missing."""
    wanted: frozenset[str]
    """Owners with a job for such workers."""
    busy: bool
    """Whether any job runs, so that this may change soon."""


class Boards:
    """Where rollout workers get episodes and return results, for every job of this process."""

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        require_images: Callable[[str, Sequence[str]], None] = lambda tenant, hashes: None,
    ) -> None:
        """Start without jobs.

        Args:
            clock: In seconds.
            require_images: Refuses images, by hash, that the tenant does not have.
        """
        self._clock = clock
        self._require_images = require_images
        self._changed = threading.Condition()
        self._entries: dict[str, BoardEntry] = {}
        self._workers: dict[str, float] = {}
        """Workers that serve any job, and when each was last heard from."""
        self._owners: dict[str, str] = {}
        """The owner whose jobs such a worker plays, from its first episode to its end: remains of
        environments in the process must not meet another tenant's episodes."""
        self._dead: BoundedDict[str, None] = BoundedDict(_DEAD_REMEMBERED)
        """Workers whose process ended, in order: a call of theirs that still waits must not get episodes."""
        self._crashing: BoundedDict[tuple[str, str], None] = BoundedDict(_CRASHING_REMEMBERED)
        """Tenants and environments in which a worker died, in order: their later jobs start isolated, so that
        submitting a job again does not cost another worker."""
        self._turn = 0
        self._closed = False

    # --- for job loops ---

    def open(
        self,
        job_id: str,
        board: EpisodeBoard,
        save: Save,
        *,
        for_server_workers: bool,
        limits: TokenLimits,
        other_limits: Mapping[str, TokenLimits] | None = None,
        owner: str = "",
        environment: str = "",
        background: bool = False,
    ) -> None:
        """Add a board of a job of `owner`, its tenant.

        Args:
            job_id: The job, or the name of another of its boards: the text of a `JobRef`.
            board: Its episodes.
            save: Makes results durable.
            for_server_workers: Whether workers that serve any job may play these.
            limits: Limits of the job's base model.
            other_limits: Limits of further base models that play some seats, by name.
            owner: The tenant.
            environment: Id of the episodes' environment.
            background: Whether they are issued after all training episodes.
        """
        with self._changed:
            entry = self._entries[job_id] = BoardEntry(
                board,
                save,
                for_server_workers,
                limits,
                dict(other_limits or {}),
                job_id=JobRef.parse(job_id).job_id,
                last_contact=self._clock(),
                owner=owner,
                tenant=owner,
                environment=environment,
                background=background,
                recorded_step=-1,
            )
            if (owner, environment) in self._crashing:
                self._isolate(job_id, entry)

    def close(self, job_id: str) -> None:
        """Remove a job; its workers are told that their leases are void."""
        with self._changed:
            self._entries.pop(job_id, None)
            self._changed.notify_all()

    def set_state(self, job_id: str, state: JobState) -> None:
        """Set the state that the workers of this job see."""
        with self._changed:
            self._entries[job_id].state = state

    def post(
        self, job_id: str, step: int, requests: Sequence[EpisodeRequest], done: Iterable[EpisodeResult] = ()
    ) -> None:
        """Begin a step of a job; waiting workers get its episodes at once."""
        with self._changed:
            entry = self._entries[job_id]
            if step > entry.board.step:
                entry.worker_deaths = 0
            entry.board.post(step, requests, done)
            self._changed.notify_all()

    def step_recorded(self, job_id: str, step: int) -> None:
        """Record that `step` is in the store, so episodes sampled by its version may be stored after it."""
        with self._changed:
            entry = self._entries[job_id]
            entry.recorded_step = max(entry.recorded_step, step)
            self._changed.notify_all()

    def publishing(self, job_id: str, version: int) -> None:
        """Record that completions may now be of this version."""
        with self._changed:
            self._entries[job_id].board.newest_version = version

    def wait(self, job_id: str, step: int, seconds: float) -> Literal["done", "broken", "waiting"]:
        """Wait until a step of the job is complete or must be played again, at most `seconds`.

        Raises:
            StorageFullError: A result could not be stored.
            EnvironmentCrashedError: Too many workers died in the step.
        """
        deadline = self._clock() + seconds
        with self._changed:
            while True:
                entry = self._entries[job_id]
                if entry.board.expire(self._clock()):
                    self._changed.notify_all()
                if entry.error is not None:
                    raise entry.error
                if entry.board.broken:
                    return "broken"
                if entry.board.unfinished(step) == 0:
                    return "done"
                left = deadline - self._clock()
                if left <= 0 or self._closed:
                    return "waiting"
                self._changed.wait(min(left, _LOOK_SECONDS))

    def wake(self) -> None:
        """Let all waiting threads check again (a cancellation, an end)."""
        with self._changed:
            self._changed.notify_all()

    def results(self, job_id: str, step: int) -> list[tuple[EpisodeRequest, EpisodeResult]]:
        """Return the finished episodes of a step of the job in index order."""
        with self._changed:
            return self._entries[job_id].board.results(step)

    def issued(self, job_id: str, step: int) -> dict[str, int]:
        """Return how often each episode of a step of the job was issued."""
        with self._changed:
            return self._entries[job_id].board.issued(step)

    def forget_step(self, job_id: str, step: int) -> None:
        """Remove a step from the board that is no longer needed."""
        with self._changed:
            self._entries[job_id].board.forget_step(step)

    def take_crash(self, job_id: str) -> bool:
        """Return, once, whether a worker died in this job's environment."""
        with self._changed:
            entry = self._entries[job_id]
            told, entry.crash_untold = entry.crash_untold, False
            return told

    def playing(self, job_id: str) -> list[str]:
        """Return the leases of the job's episodes that are being played, in index order."""
        with self._changed:
            entry = self._entries.get(job_id)
            return [] if entry is None else entry.board.playing

    def jobs_by_lease(self) -> dict[str, str]:
        """Return, for every lease of an episode being played here, its job."""
        with self._changed:
            return {
                lease_id: entry.job_id for entry in self._entries.values() for lease_id in entry.board.playing
            }

    def silent_seconds(self, job_id: str) -> float:
        """Return for how long no worker of this job was heard from."""
        with self._changed:
            return self._clock() - self._entries[job_id].last_contact

    def concurrent_workers(self, job_id: str) -> list[str]:
        """Return the workers that play the job's episodes together; empty if there is one, or none."""
        with self._changed:
            return self._entries[job_id].board.concurrent_workers

    def held_seconds(self, job_id: str) -> float:
        """Return for how long silent workers hold all open episodes of the job, 0 if none does."""
        with self._changed:
            return self._entries[job_id].board.held_seconds(self._clock())

    # --- for workers ---

    def contact(self, job_id: str) -> None:
        """Record that a worker of this job is alive."""
        with self._changed:
            entry = self._entries.get(job_id)
            if entry is not None:
                entry.last_contact = self._clock()

    def lease(self, request: LeaseRequest, job_id: str = "") -> LeaseReply:
        """Renew leases and issue episodes, waiting for some if none are open.

        Args:
            request: The worker's request.
            job_id: The job; empty for any job whose episodes the service plays, of the owner that this worker
                serves.
        """
        deadline = self._clock() + request.wait_seconds
        known = False
        with self._changed:
            while True:
                now = self._clock()
                if request.worker_id in self._dead:
                    return LeaseReply(episodes=[], lost=list(request.renew), job_state=JobState.RUNNING)
                entries = self._asked(request.worker_id, job_id)
                gone = any(request.worker_id in entry.left for entry in entries.values())
                if request.leaving or gone:
                    return self._goodbye(entries, request, job_id)
                if not job_id:
                    self._workers[request.worker_id] = now
                # Wait for a job that has just been given to this process, but not for one that has ended.
                ended, known = known and job_id not in entries, job_id in entries
                lost = self._renew(entries, request, now)
                given = self._give_any(request, now) if not job_id else self._give(entries, request, now)
                state = entries[job_id].state if job_id in entries else JobState.RUNNING
                if given or lost or ended or self._closed or request.max_episodes < 1 or now >= deadline:
                    held = 0.0
                    if job_id in entries and request.max_episodes and not given:
                        held = entries[job_id].board.held_seconds(now)
                    return LeaseReply(episodes=given, lost=lost, job_state=state, held_seconds=held)
                self._changed.wait(min(deadline - now, _LOOK_SECONDS))

    def vanished(self, worker_id: str, job_id: str) -> None:
        """Issue the episodes of a worker with a broken connection again; it may return."""
        with self._changed:
            for entry in self._asked(worker_id, job_id).values():
                if entry.board.release(worker_id):
                    self._changed.notify_all()

    def submit(self, request: SubmitRequest, job_id: str = "") -> SubmitReply:
        """Store results; returns when they are durable. One verdict per result, in order.

        Args:
            request: The results.
            job_id: The job they must belong to, others are stale; empty allows any.

        Raises:
            InvalidRequestError: A result does not match its request's seats or policy versions, or its record
                is inconsistent. Then none of this job's results are accepted.
            StorageFullError: It could not be stored.
        """
        verdicts: list[Verdict] = ["stale"] * len(request.results)
        batches: dict[str, list[int]] = {}
        for position, result in enumerate(request.results):
            found = EpisodeId.find(result.episode_id)
            if found is not None and job_id in {"", found.job.job_id}:
                batches.setdefault(str(found.job), []).append(position)
        for owner, positions in batches.items():
            batch = [request.results[position] for position in positions]
            for position, verdict in zip(positions, self._submit(owner, batch), strict=True):
                verdicts[position] = verdict
        return SubmitReply(verdicts=verdicts)

    def tenant_of(self, worker_id: str) -> str | None:
        """Return the tenant whose episodes a worker that serves any job plays; None before its first."""
        with self._changed:
            owner = self._owners.get(worker_id)
            # After a crash a job may have workers of its own.
            entry = self._entries.get(owner or "")
            return owner if entry is None else entry.tenant

    def forget_worker(self, worker_id: str, in_calls: Sequence[str] = (), *, end: WorkerEnd = "died") -> int:
        """Issue the episodes of a dead worker again; returns how many.

        Its id is not served while a call of it may still wait; its replacement has another id.

        Args:
            worker_id: The worker that is gone.
            in_calls: Episodes that were inside a call of their environment at that time. Only their jobs can
                be the cause, and use separate processes from now on. If there are none, all are suspects of
                its death.
            end: How it ended. If the scheduler ended it, that is not a crash: no job is the cause of one that
                was not needed, and only a job in a call can be the cause of one that was silent.
        """
        with self._changed:
            self._workers.pop(worker_id, None)
            self._owners.pop(worker_id, None)
            self._dead[worker_id] = None
            total = 0
            suspects = {str(found.job) for one in in_calls if (found := EpisodeId.find(one))}
            for job_id, entry in self._entries.items():
                lost = entry.board.forget_worker(worker_id)
                total += lost
                blamed = job_id in suspects if suspects or end == "silent" else lost > 0
                if end == "not_needed" or not blamed:
                    continue
                self._crashing[entry.tenant, entry.environment] = None
                entry.crash_untold = entry.crash_untold or not entry.isolated
                self._isolate(job_id, entry)
                entry.worker_deaths += 1
                if entry.worker_deaths >= MOST_WORKER_DEATHS:
                    entry.error = EnvironmentCrashedError(
                        f"{entry.worker_deaths} environment workers died while they played step "
                        f"{entry.board.step}",
                        hint="the environment seems to crash or fill the memory of its process; use "
                        "rollout='client' to play it in your own process and see how",
                    )
            self._changed.notify_all()
            return total

    def report(self, seconds: float) -> EnvWorkerReport:
        """Return the state of the workers that serve any job.

        Args:
            seconds: Workers without a request for this long are silent.
        """
        with self._changed:
            before = self._clock() - seconds
            entries = self._entries.values()
            return EnvWorkerReport(
                silent=[worker_id for worker_id, seen in self._workers.items() if seen < before],
                owners=dict(self._owners),
                wanted=frozenset(entry.owner for entry in entries if entry.for_server_workers),
                busy=bool(entries),
            )

    def shut(self) -> None:
        """End all waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # --- inside ---

    def _goodbye(self, entries: dict[str, BoardEntry], request: LeaseRequest, job_id: str) -> LeaseReply:
        """Release the episodes of a finished worker, and give it no more: a call of it may still wait."""
        for entry in entries.values():
            if request.leaving:
                entry.board.release(request.worker_id, request.renew)
            if job_id:
                entry.left[request.worker_id] = None
        self._changed.notify_all()
        state = entries[job_id].state if job_id in entries else JobState.RUNNING
        lost = [] if request.leaving else list(request.renew)
        return LeaseReply(episodes=[], lost=lost, job_state=state)

    def _asked(self, worker_id: str, job_id: str) -> dict[str, BoardEntry]:
        if job_id:
            return {name: entry for name, entry in self._entries.items() if entry.job_id == job_id}
        return self._of_owner(self._owners[worker_id]) if worker_id in self._owners else {}

    def _of_owner(self, owner: str) -> dict[str, BoardEntry]:
        return {
            job_id: entry
            for job_id, entry in self._entries.items()
            if entry.for_server_workers and entry.owner == owner
        }

    def _isolate(self, job_id: str, entry: BoardEntry) -> None:
        """From now on a crash of this job's environment only costs the episode that was in it."""
        entry.isolated = True
        if entry.board.lockstep:
            # Its episodes wait for each other, and there is no room for that many processes, so the job gets
            # its own workers instead.
            entry.owner = job_id

    def _give_any(self, request: LeaseRequest, now: float) -> list[EpisodeRequest]:
        """Issue episodes of this worker's owner; a new worker takes the owner with the fewest workers."""
        bound = self._owners.get(request.worker_id)
        workers = Counter(self._owners.values())
        owners = {entry.owner for entry in self._entries.values() if entry.for_server_workers}
        for owner in sorted(owners, key=lambda name: (workers[name], name)) if bound is None else [bound]:
            given = self._give(self._of_owner(owner), request, now)
            if given:
                self._owners[request.worker_id] = owner
                return given
        return []

    def _renew(self, entries: dict[str, BoardEntry], request: LeaseRequest, now: float) -> list[str]:
        kept: set[str] = set()
        for entry in entries.values():
            entry.last_contact = now
            if entry.board.expire(now):
                self._changed.notify_all()
            kept |= entry.board.renew(request.worker_id, request.renew, now)
        return [lease_id for lease_id in request.renew if lease_id not in kept]

    def _give(
        self, entries: dict[str, BoardEntry], request: LeaseRequest, now: float
    ) -> list[EpisodeRequest]:
        given: list[EpisodeRequest] = []
        # Another job is first each time, so that a large one does not starve the others.
        order = list(entries.values())
        self._turn += 1
        order = [order[(self._turn + offset) % len(order)] for offset in range(len(order))]
        for entry in sorted(order, key=lambda entry: entry.background):
            some = entry.board.lease(request.worker_id, request.max_episodes - len(given), now)
            if entry.isolated and not entry.board.lockstep:
                some = [episode.model_copy(update={"executor": "process"}) for episode in some]
            given += some
        return given

    def _submit(self, job_id: str, batch: Sequence[EpisodeResult]) -> list[Verdict]:
        with self._changed:
            entry = self._entries.get(job_id)
            if entry is None:
                return ["stale"] * len(batch)
            entry.last_contact = self._clock()
            seats = [_other_seats(entry, result) for result in batch]
        # Before the lock is taken again: long records take milliseconds.
        for result, own in zip(batch, seats, strict=True):
            require_sound(result, entry.limits, seats=own)
            self._require_images(entry.tenant, images_of(result))
        with self._changed:
            if self._entries.get(job_id) is not entry:
                return ["stale"] * len(batch)
            for result in batch:
                entry.board.check(result)
            batch = [entry.board.marked(result) for result in batch]
            verdicts = self._claim(job_id, entry, batch)
            claimed = [r for r, verdict in zip(batch, verdicts, strict=True) if verdict == "accepted"]
            version = max((entry.board.newest_sampled(result) for result in claimed), default=0)
            by_step: dict[int, list[EpisodeResult]] = {}
            for result in claimed:
                by_step.setdefault(entry.board.step_of(result), []).append(result)
            if claimed and not self._until(job_id, entry, lambda: entry.recorded_step >= version):
                # Stored without the step that made its version, the weights that sampled it would be unknown
                # later.
                self._settle(entry, claimed, stored=False)
                return ["stale"] * len(batch)
        stored = False
        try:
            for step, results in by_step.items():
                entry.save(step, results)
            stored = True
        except LeaseLostError:
            # The job belongs to another process by now; for the worker the lease is lost like any other.
            return ["stale"] * len(batch)
        except StorageFullError as error:
            entry.error = error
            raise
        finally:
            with self._changed:
                self._settle(entry, claimed, stored=stored)
        return verdicts

    def _claim(self, job_id: str, entry: BoardEntry, batch: Sequence[EpisodeResult]) -> list[Verdict]:
        """Claim each result. Wait for one that another call is storing: it is not durable yet."""
        board = entry.board
        # Before anything is claimed here: two calls waiting for each other's results would wait forever.
        if not self._until(job_id, entry, lambda: not any(board.saving(result) for result in batch)):
            return ["stale"] * len(batch)
        return list(board.claim_all(batch))

    def _until(self, job_id: str, entry: BoardEntry, happened: Callable[[], bool]) -> bool:
        """Wait until it has happened; False if the job is removed before that."""
        self._changed.wait_for(lambda: happened() or self._closed or self._entries.get(job_id) is not entry)
        return happened()

    def _settle(self, entry: BoardEntry, claimed: Sequence[EpisodeResult], *, stored: bool) -> None:
        for result in claimed:
            entry.board.settle(result, stored=stored)
        self._changed.notify_all()


def _other_seats(entry: BoardEntry, result: EpisodeResult) -> dict[str, TokenLimits]:
    """Return the limits of the seats of an episode that another base model than the job's own played."""
    models = entry.board.models_of(result).items() if entry.other_limits else ()
    return {agent: entry.other_limits[model] for agent, model in models if model in entry.other_limits}
