"""The episodes of one or more train steps: which are open, who plays which until when, and the results.

Pure bookkeeping of one job. Independent of threads, HTTP and storage; time is an argument.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal

from backend.episodes.heard_workers import HeardWorkers
from backend.episodes.request_check import marked_as_requested, newest_sampled, require_requested
from tinkergym.schema.episodes import EpisodeRequest, EpisodeResult

_LATE_SECONDS = 1.0
"""How late a renewal may be before its worker counts as silent."""


class _Phase(Enum):
    OPEN = auto()
    LEASED = auto()
    SAVING = auto()
    DONE = auto()


@dataclass(slots=True)
class _Slot:
    request: EpisodeRequest
    phase: _Phase = _Phase.OPEN
    lease_id: str = ""
    worker_id: str = ""
    expires_at: float = 0.0
    result: EpisodeResult | None = None

    @property
    def group(self) -> tuple[int, int]:
        """The key of its group."""
        return self.request.step, self.request.group


def _new_lease_id() -> str:
    return uuid.uuid4().hex


@dataclass(slots=True, kw_only=True)
class EpisodeBoard:
    """The episodes of one job's current step, and of the steps after it that may be played ahead.

    Earlier steps are issued first. An expired lease is void only once its episode has gone to another worker,
    so a slow worker that returns before that loses nothing. In lockstep a step's episodes go to one worker
    together, and if any of them is lost the step must be played again from its start (`broken`).
    """

    lease_seconds: float
    lockstep: bool = False
    by_group: bool = False
    """Whether the group's episodes are scored together: they go to one worker and are submitted as a
    whole."""
    ahead: int = 0
    """How many steps before the posted one stay on the board."""
    new_lease_id: Callable[[], str] = _new_lease_id
    step: int = 0
    """The step that was posted last."""
    newest_version: int = 0
    """Newest version of the trained policies; a completion cannot be of a later one."""
    broken: bool = False
    """In lockstep, part of the step was lost: nothing is leased or accepted until the next `post`."""
    _slots: dict[str, _Slot] = field(default_factory=dict)
    _issued: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By episode its step, and how often it was issued."""
    _workers: HeardWorkers = field(init=False)

    def __post_init__(self) -> None:
        self._workers = HeardWorkers(self.lease_seconds)

    def post(self, step: int, requests: Sequence[EpisodeRequest], done: Iterable[EpisodeResult] = ()) -> None:
        """Begin or restart a step; `done` are results that are already stored."""
        self.step, self.broken = step, False
        self._slots = {
            name: slot
            for name, slot in self._slots.items()
            if slot.request.step >= step - self.ahead and slot.request.step != step
        } | {request.episode_id: _Slot(request) for request in requests}
        self._issued = {name: of for name, of in self._issued.items() if of[0] >= step - self.ahead}
        for result in done:
            slot = self._slots.get(result.episode_id)
            if slot is not None:
                slot.phase, slot.result = _Phase.DONE, result

    def forget_step(self, step: int) -> None:
        """Remove a step from the board."""
        self._slots = {name: slot for name, slot in self._slots.items() if slot.request.step != step}

    def lease(self, worker_id: str, max_episodes: int, now: float) -> list[EpisodeRequest]:
        """Lease up to `max_episodes` open episodes; in lockstep all of the step or none.

        If several workers ask, each gets at most an even share, so that the last one is not left waiting for
        the first one's queue.
        """
        self._workers.note(worker_id, now)
        if max_episodes < 1 or self.broken:
            return []
        free = [slot for slot in self._slots.values() if slot.phase is _Phase.OPEN]
        if self.lockstep:
            if len(free) < len(self._slots):
                return []
        elif self.by_group:
            free = self._whole_groups(max_episodes)
        else:
            free = self._even_share(free, max_episodes)
        return [self._give(slot, worker_id, now) for slot in free]

    def renew(self, worker_id: str, lease_ids: Iterable[str], now: float) -> set[str]:
        """Extend leases; returns those that are this worker's and still valid."""
        self._workers.note(worker_id, now)
        wanted = set(lease_ids)
        kept: set[str] = set()
        for slot in self._slots.values():
            if slot.lease_id and slot.lease_id in wanted and slot.worker_id == worker_id and not self.broken:
                # Its lease had expired, but no other worker has taken the episode.
                if slot.phase is _Phase.OPEN:
                    slot.phase = _Phase.LEASED
                slot.expires_at = now + self.lease_seconds
                kept.add(slot.lease_id)
        return kept

    def check(self, result: EpisodeResult) -> None:
        """Refuse a result that does not fit its request; see `require_requested`."""
        slot = self._slots.get(result.episode_id)
        if slot is not None:
            require_requested(result, slot.request, newest_version=self.newest_version)

    def marked(self, result: EpisodeResult) -> EpisodeResult:
        """Return a result whose trajectories say whether their seat is trained, whatever its worker wrote."""
        slot = self._slots.get(result.episode_id)
        return result if slot is None else marked_as_requested(result, slot.request)

    def newest_sampled(self, result: EpisodeResult) -> int:
        """Return the newest version of a trained policy that sampled a part of an episode."""
        return newest_sampled(result, self._slots[result.episode_id].request)

    def models_of(self, result: EpisodeResult) -> dict[str, str]:
        """Return the model at each seat of an episode, by agent; nothing if it is not on this board."""
        slot = self._slots.get(result.episode_id)
        return {} if slot is None else {agent: seat.model for agent, seat in slot.request.seats.items()}

    def step_of(self, result: EpisodeResult) -> int:
        """Return the step of an episode of this board."""
        return self._slots[result.episode_id].request.step

    def claim(self, result: EpisodeResult) -> Literal["accepted", "duplicate", "stale"]:
        """Check a result before it is stored; after `accepted`, `settle` must follow.

        A `duplicate` is durable only if it is not `saving`.
        """
        slot = self._slots.get(result.episode_id)
        if slot is None or self.broken:
            return "stale"
        if slot.phase in {_Phase.DONE, _Phase.SAVING}:
            return "duplicate"
        # Without a lease it was never given away, or its worker is known to be dead.
        if not slot.lease_id or slot.lease_id != result.lease_id:
            return "stale"
        slot.phase = _Phase.SAVING
        return "accepted"

    def claim_all(self, results: Sequence[EpisodeResult]) -> list[Literal["accepted", "duplicate", "stale"]]:
        """`claim` each result; of a group that is paid together all or none."""
        whole = self._handed_in_whole(results) if self.by_group else None
        return [
            "stale" if whole is not None and self._groups_of(result) - whole else self.claim(result)
            for result in results
        ]

    def _handed_in_whole(self, results: Sequence[EpisodeResult]) -> set[tuple[int, int]]:
        """Return the groups all of whose episodes are among these results, under the valid lease."""
        leases = {result.episode_id: result.lease_id for result in results}
        groups = set[tuple[int, int]]().union(*map(self._groups_of, results))
        lacking = {
            slot.group
            for name, slot in self._slots.items()
            if slot.phase not in {_Phase.DONE, _Phase.SAVING} and slot.lease_id != leases.get(name)
        }
        return groups - lacking

    def _groups_of(self, result: EpisodeResult) -> set[tuple[int, int]]:
        slot = self._slots.get(result.episode_id)
        return set() if slot is None else {slot.group}

    def saving(self, result: EpisodeResult) -> bool:
        """Whether a result of this episode was claimed and is not settled yet."""
        slot = self._slots.get(result.episode_id)
        return slot is not None and slot.phase is _Phase.SAVING and not self.broken

    def settle(self, result: EpisodeResult, *, stored: bool) -> None:
        """Finish `claim`: the result is durable, or storing it failed and the lease continues."""
        slot = self._slots.get(result.episode_id)
        # In a lockstep step that broke meanwhile, the same episode may be stored again under another lease.
        if slot is None or slot.phase is not _Phase.SAVING or slot.lease_id != result.lease_id:
            return
        slot.phase = _Phase.DONE if stored else _Phase.LEASED
        slot.result = result if stored else None

    def expire(self, now: float) -> int:
        """Open the episodes whose lease has expired; returns how many."""
        return self._reopen(slot for slot in self._slots.values() if now >= slot.expires_at)

    def forget_worker(self, worker_id: str) -> int:
        """Open the episodes of a worker that is known to be dead; returns how many."""
        self._workers.forget(worker_id)
        its = [slot for slot in self._slots.values() if slot.worker_id == worker_id]
        lost = self._reopen(its)
        for slot in its:
            # Unlike a silent worker it cannot return, so nothing can come under this lease any more.
            if slot.phase is _Phase.OPEN:
                slot.lease_id = ""
        return lost

    def release(self, worker_id: str, kept: Iterable[str] = ()) -> int:
        """Open the episodes of a worker that ends, except for some leases; returns how many.

        Their leases stay valid until other workers take the episodes, as for a silent worker.
        """
        self._workers.forget(worker_id)
        spared = set(kept)
        return self._reopen(
            slot
            for slot in self._slots.values()
            if slot.worker_id == worker_id and slot.lease_id not in spared
        )

    def held_seconds(self, now: float) -> float:
        """Return for how long silent workers hold all open episodes; 0 if there are others."""
        left = [slot for slot in self._slots.values() if slot.phase is not _Phase.DONE]
        # A worker renews its leases three times before they expire.
        silent = now - self.lease_seconds / 3 - _LATE_SECONDS
        if not left or self.broken or any(slot.phase is not _Phase.LEASED for slot in left):
            return 0.0
        if any(self._workers.last_seen(slot.worker_id) > silent for slot in left):
            return 0.0
        return max(0.0, max(slot.expires_at for slot in left) - now)

    def unfinished(self, step: int) -> int:
        """Return how many episodes of a step on the board have no stored result yet."""
        return sum(
            slot.phase is not _Phase.DONE for slot in self._slots.values() if slot.request.step == step
        )

    @property
    def playing(self) -> list[str]:
        """The leases of the episodes being played, in index order of the episodes."""
        if self.broken:
            return []
        return [slot.lease_id for slot in self._slots.values() if slot.phase is _Phase.LEASED]

    def results(self, step: int) -> list[tuple[EpisodeRequest, EpisodeResult]]:
        """Return the finished episodes of a step in index order, whatever their order of arrival."""
        return [
            (slot.request, slot.result)
            for slot in self._slots.values()
            if slot.result is not None and slot.request.step == step
        ]

    def issued(self, step: int) -> dict[str, int]:
        """Return how often each episode of a step was issued; above 1, a worker lost it."""
        return {name: times for name, (of_step, times) in self._issued.items() if of_step == step}

    @property
    def concurrent_workers(self) -> list[str]:
        """The workers that were heard from while another one played, too."""
        return self._workers.concurrent

    def _even_share(self, free: Sequence[_Slot], most: int) -> list[_Slot]:
        chosen: list[_Slot] = []
        for step in sorted({slot.request.step for slot in free}):
            share = math.ceil(self.unfinished(step) / max(1, len(self._workers)))
            of_step = [slot for slot in free if slot.request.step == step]
            chosen += of_step[: min(most - len(chosen), max(1, share))]
        return chosen

    def _whole_groups(self, most: int) -> list[_Slot]:
        """Return the episodes of open groups: at least one group, more if there is room."""
        groups: dict[tuple[int, int], list[_Slot]] = {}
        for slot in self._slots.values():
            groups.setdefault(slot.group, []).append(slot)
        chosen: list[_Slot] = []
        for step in sorted({step for step, _ in groups}):
            # The first worker to ask must not take the whole step while others have nothing to play.
            share = math.ceil(self.unfinished(step) / max(1, len(self._workers)))
            taken = 0
            for key, slots in groups.items():
                if key[0] != step or any(slot.phase is not _Phase.OPEN for slot in slots):
                    continue
                if chosen and (len(chosen) + len(slots) > most or taken >= share):
                    break
                chosen += slots
                taken += len(slots)
        return chosen

    def _give(self, slot: _Slot, worker_id: str, now: float) -> EpisodeRequest:
        slot.phase, slot.worker_id = _Phase.LEASED, worker_id
        slot.lease_id, slot.expires_at = self.new_lease_id(), now + self.lease_seconds
        _, times = self._issued.get(slot.request.episode_id, (0, 0))
        self._issued[slot.request.episode_id] = slot.request.step, times + 1
        return slot.request.model_copy(
            update={"lease_id": slot.lease_id, "lease_seconds": self.lease_seconds},
        )

    def _reopen(self, slots: Iterable[_Slot]) -> int:
        lost = [slot for slot in slots if slot.phase is _Phase.LEASED]
        for slot in lost:
            slot.phase = _Phase.OPEN
            # lease_id and worker_id stay: until another worker takes the episode, its worker may return.
        if lost and self.lockstep:
            self.broken = True
        return len(lost)
