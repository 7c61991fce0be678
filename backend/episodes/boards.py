"""The boards of all jobs in this process: job loops post episodes, rollout workers play them.

boards.Boards       what job loops and workers call
open_boards         the open boards, and the one condition that protects them all
job_board           one board of a job, with what workers must know of the job
leasing             who plays which episode until when
server_workers      whose jobs a worker plays that serves any
submissions         results: claimed, stored, acknowledged
episode_board       the episodes of a job's steps: pure bookkeeping
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from backend.episodes.env_worker_end import WorkerEnd
from backend.episodes.job_board import JobBoard
from backend.episodes.leasing import Leasing
from backend.episodes.open_boards import OpenBoards
from backend.episodes.submissions import Submissions
from tinkergym.schema.episodes import (
    EpisodeRequest,
    EpisodeResult,
    LeaseReply,
    LeaseRequest,
    SubmitReply,
    SubmitRequest,
)
from tinkergym.schema.events import JobState


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
    """Where rollout workers get episodes and return results, for every job of this process. Thread-safe."""

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
        self._open = OpenBoards(clock)
        self._changed = self._open.changed
        self._leasing = Leasing(self._open)
        self._submissions = Submissions(self._open, require_images)

    # --- for job loops ---

    def open(self, board: JobBoard) -> None:
        """Add a board of a job."""
        with self._changed:
            board.last_contact = self._open.clock()
            self._open.by_name[board.name] = board
            self._leasing.board_opened(board)
            self._changed.notify_all()  # Who waited without boards now looks at the clock more often.

    def close(self, name: str) -> None:
        """Remove a board; its workers are told that their leases are void."""
        with self._changed:
            self._open.by_name.pop(name, None)
            self._changed.notify_all()

    def set_state(self, name: str, state: JobState) -> None:
        """Set the state that the workers of this job see."""
        with self._changed:
            self._open.by_name[name].state = state

    def post(
        self, name: str, step: int, requests: Sequence[EpisodeRequest], done: Iterable[EpisodeResult] = ()
    ) -> None:
        """Begin a step of a job; waiting workers get its episodes at once."""
        with self._changed:
            one = self._open.by_name[name]
            if step > one.board.step:
                # Not for a step that is posted again: its episodes may be what kills workers.
                one.worker_deaths = 0
            one.board.post(step, requests, done)
            self._changed.notify_all()

    def step_recorded(self, name: str, step: int) -> None:
        """Record that `step` is in the store, so episodes sampled by its version may be stored after it."""
        with self._changed:
            one = self._open.by_name[name]
            one.recorded_step = max(one.recorded_step, step)
            self._changed.notify_all()

    def publishing(self, name: str, version: int) -> None:
        """Record that completions may now be of this version."""
        with self._changed:
            self._open.by_name[name].board.newest_version = version

    def wait(self, name: str, step: int, seconds: float) -> Literal["done", "broken", "waiting"]:
        """Wait until a step of the job is complete or must be played again, at most `seconds`.

        Raises:
            StorageFullError: A result could not be stored.
            TooManyFailedEpisodesError: Too many workers died in the step.
        """
        deadline = self._open.clock() + seconds
        with self._changed:
            while True:
                one = self._open.by_name[name]
                self._open.expire(one)
                if one.error is not None:
                    raise one.error
                if one.board.broken:
                    return "broken"
                if one.board.unfinished(step) == 0:
                    return "done"
                left = deadline - self._open.clock()
                if left <= 0 or self._open.shut:
                    return "waiting"
                self._open.wait(left)

    def wake(self) -> None:
        """Let all waiting threads check again (a cancellation, an end)."""
        with self._changed:
            self._changed.notify_all()

    def results(self, name: str, step: int) -> list[tuple[EpisodeRequest, EpisodeResult]]:
        """Return the finished episodes of a step of the job in index order."""
        with self._changed:
            return self._open.by_name[name].board.results(step)

    def issued(self, name: str, step: int) -> dict[str, int]:
        """Return how often each episode of a step of the job was issued."""
        with self._changed:
            return self._open.by_name[name].board.issued(step)

    def forget_step(self, name: str, step: int) -> None:
        """Remove a step from the board that is no longer needed."""
        with self._changed:
            self._open.by_name[name].board.forget_step(step)

    def take_crash(self, name: str) -> bool:
        """Return, once, whether a worker died in this job's environment."""
        with self._changed:
            one = self._open.by_name[name]
            told, one.crash_untold = one.crash_untold, False
            return told

    def playing(self, name: str) -> list[str]:
        """Return the leases of the episodes that are being played, in index order; none if it is closed."""
        with self._changed:
            one = self._open.by_name.get(name)
            return [] if one is None else one.board.playing

    def jobs_by_lease(self) -> dict[str, str]:
        """Return, for every lease of an episode being played here, its job."""
        with self._changed:
            boards = self._open.by_name.values()
            return {lease_id: one.job_id for one in boards for lease_id in one.board.playing}

    def silent_seconds(self, name: str) -> float:
        """Return for how long no worker of this job was heard from."""
        with self._changed:
            return self._open.clock() - self._open.by_name[name].last_contact

    def concurrent_workers(self, name: str) -> list[str]:
        """Return the workers that play the job's episodes together; empty if there is one, or none."""
        with self._changed:
            return self._open.by_name[name].board.concurrent_workers

    def held_seconds(self, name: str) -> float:
        """Return for how long silent workers hold all open episodes of the job, 0 if none does."""
        with self._changed:
            return self._open.by_name[name].board.held_seconds(self._open.clock())

    # --- for workers ---

    def contact(self, name: str) -> None:
        """Record that a worker of this job is alive."""
        with self._changed:
            one = self._open.by_name.get(name)
            if one is not None:
                one.last_contact = self._open.clock()

    def lease(self, request: LeaseRequest, job_id: str = "") -> LeaseReply:
        """Renew leases and issue episodes, waiting for some if none are open.

        Args:
            request: The worker's request.
            job_id: The job; empty for any job whose episodes the service plays, of the owner that this worker
                serves.
        """
        return self._leasing.lease(request, job_id)

    def vanished(self, worker_id: str, job_id: str) -> None:
        """Issue the episodes of a worker with a broken connection again; it may return."""
        self._leasing.vanished(worker_id, job_id)

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
        return self._submissions.submit(request, job_id)

    def tenant_of(self, worker_id: str) -> str | None:
        """Return the tenant whose episodes a worker that serves any job plays; None before its first."""
        with self._changed:
            owner = self._leasing.workers.owners.get(worker_id)
            # After a crash a job may have workers of its own.
            one = self._open.by_name.get(owner or "")
            return owner if one is None else one.tenant

    def forget_worker(self, worker_id: str, in_calls: Sequence[str] = (), *, end: WorkerEnd = "died") -> int:
        """Issue the episodes of a dead worker again; returns how many.

        Args:
            worker_id: The worker that is gone.
            in_calls: Episodes that were inside a call of their environment at that time. Only their jobs can
                be the cause, and use separate processes from now on. If there are none, all are suspects of
                its death.
            end: How it ended. If the scheduler ended it, that is not a crash: no job is the cause of one that
                was not needed, and only a job in a call can be the cause of one that was silent.
        """
        return self._leasing.forget_worker(worker_id, in_calls, end)

    def report(self, seconds: float) -> EnvWorkerReport:
        """Return the state of the workers that serve any job.

        Args:
            seconds: Workers without a request for this long are silent.
        """
        with self._changed:
            boards, workers = self._open.by_name.values(), self._leasing.workers
            return EnvWorkerReport(
                silent=workers.silent_since(self._open.clock() - seconds),
                owners=dict(workers.owners),
                wanted=frozenset(one.owner for one in boards if one.for_server_workers),
                busy=bool(boards),
            )

    def server_workers(self) -> list[tuple[str, str, float]]:
        """Return the workers that serve any job: id, owner or "", and seconds since the last request."""
        with self._changed:
            return self._leasing.workers.listed(self._open.clock())

    def shut(self) -> None:
        """End all waiting."""
        with self._changed:
            self._open.shut = True
            self._changed.notify_all()
