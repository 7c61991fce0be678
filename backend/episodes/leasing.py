"""Leases of episodes: issued, renewed, and issued again when their worker leaves, dies or disconnects."""

from __future__ import annotations

from collections.abc import Sequence

from backend.episodes.env_worker_end import WorkerEnd
from backend.episodes.job_board import JobBoard
from backend.episodes.open_boards import OpenBoards
from backend.episodes.server_workers import ServerWorkers
from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.schema.episodes import EpisodeRequest, LeaseReply, LeaseRequest
from tinkergym.schema.events import JobState
from tinkergym.schema.ids import EpisodeId

_CRASHING_REMEMBERED = 1000
"""The number of remembered pairs of a tenant and an environment."""


class Leasing:
    """Gives episodes to workers of a job, and to workers that serve any job.

    An episode has one valid lease. A worker that left or died gets no more episodes, not even in a call that
    still waits. A job whose environment killed a worker is isolated, and so are later jobs of the tenant in
    this environment: submitting a job again does not cost another worker.
    """

    def __init__(self, boards: OpenBoards) -> None:
        self._boards, self.workers = boards, ServerWorkers()
        self._crashing: BoundedDict[tuple[str, str], None] = BoundedDict(_CRASHING_REMEMBERED)
        """Tenants and environments in which a worker died."""
        self._turn = 0

    def board_opened(self, board: JobBoard) -> None:
        """Isolate a new board if its environment has killed a worker before."""
        if (board.tenant, board.environment) in self._crashing:
            board.isolate()

    def lease(self, request: LeaseRequest, job_id: str) -> LeaseReply:
        """See `Boards.lease`."""
        boards = self._boards
        deadline = boards.clock() + request.wait_seconds
        known = False
        with boards.changed:
            while True:
                now = boards.clock()
                if self.workers.is_dead(request.worker_id):
                    return LeaseReply(episodes=[], lost=list(request.renew), job_state=JobState.RUNNING)
                served = self._served(request.worker_id, job_id)
                own = boards.by_name.get(job_id)
                if request.leaving or any(request.worker_id in board.left for board in served):
                    return self._leave(served, request, job_id)
                if not job_id:
                    self.workers.heard_from(request.worker_id, now)
                # Wait for a job that has just been given to this process, but not for one that has ended.
                ended, known = known and own is None, own is not None
                lost = self._renew(served, request, now)
                given = self._give(served, request, now) if job_id else self._give_any(request, now)
                done = given or lost or ended or boards.shut
                if done or request.max_episodes < 1 or now >= deadline:
                    return LeaseReply(
                        episodes=given,
                        lost=lost,
                        job_state=own.state if own else JobState.RUNNING,
                        held_seconds=own.board.held_seconds(now)
                        if own and request.max_episodes and not given
                        else 0.0,
                    )
                boards.wait(deadline - now)

    def vanished(self, worker_id: str, job_id: str) -> None:
        """See `Boards.vanished`."""
        with self._boards.changed:
            for board in self._served(worker_id, job_id):
                if board.board.release(worker_id):
                    self._boards.changed.notify_all()

    def forget_worker(self, worker_id: str, in_calls: Sequence[str], end: WorkerEnd) -> int:
        """See `Boards.forget_worker`."""
        with self._boards.changed:
            self.workers.forget(worker_id)
            total = 0
            suspects = {str(found.job) for one in in_calls if (found := EpisodeId.find(one))}
            for name, board in self._boards.by_name.items():
                lost = board.board.forget_worker(worker_id)
                total += lost
                blamed = name in suspects if suspects or end == "silent" else lost > 0
                if blamed and end != "not_needed":
                    self._crashing[board.tenant, board.environment] = None
                    board.note_crash()
            self._boards.changed.notify_all()
            return total

    def _served(self, worker_id: str, job_id: str) -> list[JobBoard]:
        """Return the boards whose episodes a worker plays: those of a job, or of its owner."""
        if job_id:
            return self._boards.of_job(job_id)
        owner = self.workers.owners.get(worker_id)
        return [] if owner is None else self._boards.of_owner(owner)

    def _leave(self, served: Sequence[JobBoard], request: LeaseRequest, job_id: str) -> LeaseReply:
        """Release the episodes of a finished worker, and give it no more: a call of it may still wait."""
        for board in served:
            if request.leaving:
                board.board.release(request.worker_id, request.renew)
            if job_id:
                board.left[request.worker_id] = None
        self._boards.changed.notify_all()
        own = self._boards.by_name.get(job_id)
        lost = [] if request.leaving else list(request.renew)
        return LeaseReply(episodes=[], lost=lost, job_state=own.state if own else JobState.RUNNING)

    def _renew(self, served: Sequence[JobBoard], request: LeaseRequest, now: float) -> list[str]:
        """Renew a worker's leases, and return those that are lost."""
        kept: set[str] = set()
        for board in served:
            board.last_contact = now
            self._boards.expire(board)
            kept |= board.board.renew(request.worker_id, request.renew, now)
        return [lease_id for lease_id in request.renew if lease_id not in kept]

    def _give_any(self, request: LeaseRequest, now: float) -> list[EpisodeRequest]:
        """Issue episodes of this worker's owner; a new worker takes the owner with the fewest workers."""
        open_now = (one.owner for one in self._boards.by_name.values() if one.for_server_workers)
        for owner in self.workers.choice(request.worker_id, open_now):
            given = self._give(self._boards.of_owner(owner), request, now)
            if given:
                self.workers.owners[request.worker_id] = owner
                return given
        return []

    def _give(self, served: Sequence[JobBoard], request: LeaseRequest, now: float) -> list[EpisodeRequest]:
        given: list[EpisodeRequest] = []
        # Another job is first each time, so that a large one does not starve the others.
        self._turn += 1
        order = [served[(self._turn + offset) % len(served)] for offset in range(len(served))]
        for board in sorted(order, key=lambda one: one.background):
            given += board.lease(request.worker_id, request.max_episodes - len(given), now)
        return given
