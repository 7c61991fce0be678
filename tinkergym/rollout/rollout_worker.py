"""RolloutWorker: plays the episodes that a service leases, and submits the results.

Three threads: the caller's drives the episodes, one renews the leases, one submits. An outage of the service
only costs time: episodes continue where they can, and results wait.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.agent.sampler import Sampler
from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.errors import PayloadTooLargeError, ServiceUnavailableError, TinkerGymError
from tinkergym.rollout.call_register import CallRegister
from tinkergym.rollout.executors import Executor, MakeEnv
from tinkergym.rollout.played_episode import Recorder
from tinkergym.rollout.player import EpisodePlayer
from tinkergym.schema.episodes import EpisodeResult, LeaseReply, LeaseRequest, SubmitReply, SubmitRequest
from tinkergym.schema.events import JobState
from tinkergym.schema.ids import EpisodeGroup, EpisodeId
from tinkergym.schema.views import RendererBundle

_log = logging.getLogger(__name__)
_Answer = TypeVar("_Answer")

_MOST_RENDERERS = 16
"""Each holds a tokenizer, several megabytes; jobs bring chat templates of their own."""
_LONGEST_WAIT_SECONDS = 10.0
_FIRST_WAIT_SECONDS = 1.0
_POLL_SECONDS = 60.0
"""Whatever happens wakes the player; this only bounds one wait."""
_LAST_POLL_SECONDS = 0.25
"""The same once the job has ended and the last results are submitted, which may fail without a word."""
_MOST_PER_SUBMIT = 256
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.25, 5.0
_LAST_SUBMIT_SECONDS = 5.0
_IDLE_PAUSE_SECONDS = 0.2
"""Pause after a request for episodes that was answered at once with none."""


class RolloutTransport(Protocol):
    """A worker's connection to the service. Methods are called from several threads."""

    def lease(self, request: LeaseRequest) -> LeaseReply:
        """Request episodes and renew the held leases."""
        ...

    def submit(self, request: SubmitRequest) -> SubmitReply:
        """Submit results. When this returns they are durable."""
        ...

    def sampler(self) -> Sampler:
        """Return a new sampler, which the caller closes."""
        ...

    def renderer(self, model: str) -> RendererBundle:
        """Return what turns messages into the model's token ids."""
        ...


class RolloutWorker:
    """Leases, plays and submits episodes until the job has ended or it is told to stop."""

    def __init__(
        self,
        transport: RolloutTransport,
        *,
        make_env: MakeEnv,
        max_episodes: int = 256,
        executor: Executor | None = None,
        register: CallRegister | None = None,
        recorder: Recorder | None = None,
        worker_id: str = "",
    ) -> None:
        """Prepare the worker; `run` starts it.

        Args:
            transport: The connection to the service.
            make_env: Creates the environment that a request names.
            max_episodes: The most episodes at once, within the executor's capacity.
            executor: Where environments run; None uses the job's setting.
            register: Records the calls in progress, in case this process dies.
            recorder: See `EpisodePlayer`; closed at the end.
            worker_id: The worker's id; random by default.
        """
        self._transport = transport
        self._make_env = make_env
        self._executor, self._register, self._recorder = executor, register, recorder
        self._max_episodes = min(max_episodes, executor.capacity) if executor else max_episodes
        self._worker_id = worker_id or f"worker-{uuid.uuid4().hex[:12]}"
        self._renderers: BoundedDict[str, Renderer] = BoundedDict(_MOST_RENDERERS)
        """The most recently used; each episode keeps a reference to its own."""
        # Guards everything below, and notifies the threads of changes.
        self._changed = threading.Condition()
        # Held until the result is durable; `_playing` has a lease only until its episode has ended.
        self._leases: set[str] = set()
        self._playing: set[str] = set()
        self._groups: dict[str, EpisodeGroup] = {}
        """By lease, the group with which the episode is scored, if it is not scored separately."""
        self._renew_seconds = _LONGEST_WAIT_SECONDS
        self._replies: deque[tuple[LeaseReply, dict[str, Renderer]]] = deque()
        """Each with the renderers of its episodes."""
        self._results: deque[EpisodeResult] = deque()
        self._submitting = False
        self.stopped = False
        """Whether `stop` was called."""
        self._final = self._ended = self._met = False
        self._wake: Callable[[], None] = lambda: None
        """Wakes the caller's thread."""
        self._warned: set[str] = set()
        """The kinds of waiting that were logged."""
        self.left = threading.Event()
        """Set when `run` has returned its leases and submitted finished results, or need not."""
        self._failure: BaseException | None = None

    def allow(self, episodes: int) -> None:
        """Change how many episodes it plays at once; those that it plays continue."""
        with self._changed:
            self._max_episodes = episodes
            self._changed.notify_all()

    def stop(self) -> None:
        """Let `run` return soon, or at once if it is called later. Callable from any thread."""
        self.stopped = True
        self._wake()

    def run(self) -> None:
        """Work until the job has ended or `stop` is called. Unfinished episodes are left to other workers.

        Raises:
            TinkerGymError: The service refuses this worker. An outage does not raise.
        """
        sampler = self._transport.sampler()
        player = EpisodePlayer(
            sampler=sampler,
            make_env=self._make_env,
            executor=self._executor,
            register=self._register,
            recorder=self._recorder,
        )
        self._wake = player.wake
        self._start_thread("lease", self._keep_leases)
        submitter = self._start_thread("submit", self._submit_results)
        try:
            self._drive(player, submitter)
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            try:
                self._give_leases_back()
                # Finished results are worth a last attempt, and their leases were kept for it: if the process
                # ended first, those would have to expire. The thread that waits for leases is left alone.
                submitter.join(_LAST_SUBMIT_SECONDS)
            finally:
                self.left.set()
                player.close()
                sampler.close()
                if self._recorder is not None:
                    self._recorder.close()
        if self._failure is not None:
            raise self._failure

    # --- the caller's thread: episodes ---

    def _drive(self, player: EpisodePlayer, submitter: threading.Thread) -> None:
        while not self.stopped and self._failure is None:
            self._take_replies(player)
            finished = player.poll(_LAST_POLL_SECONDS if self._final else _POLL_SECONDS)
            with self._changed:
                for result in finished:
                    self._playing.discard(result.lease_id)
                self._results.extend(finished)
                if finished:
                    self._changed.notify_all()
                handed_in = not self._results and not self._submitting
                # Without the submitter, no thread would hand in the rest.
                if self._final and (handed_in or not submitter.is_alive()):
                    return

    def _give_leases_back(self) -> None:
        """Return unfinished episodes to other workers at once. Waiting results are still submitted."""
        try:
            with self._changed:
                over, kept = self._final, sorted(self._leases - self._playing)
            if not over:
                self._transport.lease(
                    LeaseRequest(
                        worker_id=self._worker_id, max_episodes=0, wait_seconds=0, renew=kept, leaving=True
                    )
                )
        except TinkerGymError as error:
            _log.info("the leases were not returned and will expire: %s", error)

    def _take_replies(self, player: EpisodePlayer) -> None:
        """Start and drop episodes as the service requests."""
        with self._changed:
            replies = list(self._replies)
            self._replies.clear()
        for reply, renderers in replies:
            for lease_id in reply.lost:
                player.drop(lease_id)
            for request in reply.episodes:
                player.start(EpisodePlan.from_request(request), renderers.__getitem__)

    # --- leases ---

    def _keep_leases(self) -> None:
        while True:
            with self._changed:
                # Without a free place, leases are renewed in time and nothing else is requested.
                self._changed.wait_for(lambda: self._ended or self._free > 0, timeout=self._renew_seconds)
                if self._ended:
                    return
                free = max(0, self._free)
                # The first response quickly says what the job waits for.
                longest = _LONGEST_WAIT_SECONDS if self._met else _FIRST_WAIT_SECONDS
                request = LeaseRequest(
                    worker_id=self._worker_id,
                    max_episodes=free,
                    wait_seconds=min(longest, self._renew_seconds),
                    renew=sorted(self._leases),
                )
            reply = self._patiently(partial(self._transport.lease, request))
            if reply is None:
                return
            self._met = True
            self._log_waiting(reply)
            renderers = self._renderers_for(reply)
            if renderers is None:
                return
            with self._changed:
                self._remember(_lost_as_groups(reply, self._groups), renderers)
                self._final = reply.job_state.final
                idle = not reply.episodes and not reply.lost
            self._wake()
            if self._final:
                return
            if idle and free:
                self._pause(_IDLE_PAUSE_SECONDS)

    def _log_waiting(self, reply: LeaseReply) -> None:
        kind, reason = _waits_for(reply)
        if kind and kind not in self._warned and not self._playing:
            self._warned.add(kind)
            _log.warning("%s", reason)

    @property
    def _free(self) -> int:
        return self._max_episodes - len(self._playing)

    def _remember(self, reply: LeaseReply, renderers: dict[str, Renderer]) -> None:
        taken = {episode.lease_id for episode in reply.episodes}
        self._leases = (self._leases | taken) - set(reply.lost)
        self._playing = (self._playing | taken) - set(reply.lost)
        for lease_id in reply.lost:
            self._groups.pop(lease_id, None)
        for episode in reply.episodes:
            if episode.group_size:
                key = EpisodeId.parse(episode.episode_id).in_group(episode.group)
                self._groups[episode.lease_id] = key
            # Three chances to renew before a lease expires.
            self._renew_seconds = min(self._renew_seconds, episode.lease_seconds / 3)
        self._replies.append((reply, renderers))

    def _renderers_for(self, reply: LeaseReply) -> dict[str, Renderer] | None:
        """Return the renderers of a reply's episodes by model; None if this worker ends."""
        seats = [seat for episode in reply.episodes for seat in episode.seats.values() if not seat.table]
        found: dict[str, Renderer] = {}
        for model in dict.fromkeys(seat.model for seat in seats):
            if model not in self._renderers:
                bundle = self._patiently(partial(self._transport.renderer, model))
                if bundle is None:
                    return None
                self._renderers[model] = Renderer.from_bundle(bundle)
            found[model] = self._renderers[model]
        return found

    # --- results ---

    def _submit_results(self) -> None:
        most = _MOST_PER_SUBMIT
        while True:
            with self._changed:
                while not self._results:
                    if self._ended:
                        return
                    self._changed.wait()
                batch = _next_batch(self._results, self._groups, most)
                self._submitting = True
            try:
                most = self._submit(batch, most)
            finally:
                with self._changed:
                    self._submitting = False
                    self._changed.notify_all()
                if self._final:
                    self._wake()

    def _submit(self, batch: Sequence[EpisodeResult], most: int) -> int:
        """Submit a batch; return how many results the next one may have."""
        # The results are our own frozen records, so copying them through validation is not needed.
        body = SubmitRequest.model_construct(worker_id=self._worker_id, results=list(batch))
        try:
            reply = self._patiently(partial(self._transport.submit, body))
        except PayloadTooLargeError:
            half = _middle(batch, self._groups)
            if not half:
                raise
            return min(half, self._submit(batch[:half], most), self._submit(batch[half:], most))
        if reply is None:
            return most
        with self._changed:
            self._leases -= {result.lease_id for result in batch}
            for result in batch:
                self._groups.pop(result.lease_id, None)
        for result, verdict in zip(batch, reply.verdicts, strict=True):
            if verdict == "stale":
                _log.info("episode %s was too late: its lease was lost", result.episode_id)
        return most

    # --- outages and ends ---

    def _patiently(self, ask: Callable[[], _Answer]) -> _Answer | None:
        """Repeat a request until the service is available.

        Once the worker has ended there is one last try; if it fails, this returns None.
        """
        pause, ended = _FIRST_PAUSE_SECONDS, False
        while True:
            try:
                return ask()
            except ServiceUnavailableError as error:
                _log.warning("the service does not respond, retrying in %.2g s: %s", pause, error)
                if ended:
                    return None
                ended = self._pause(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def _pause(self, seconds: float) -> bool:
        """Wait; return whether the worker has ended."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ended, timeout=seconds)

    def _start_thread(self, name: str, loop: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                loop()
            # The edge of a thread: `run` raises the error in the caller's thread.
            except Exception as error:
                with self._changed:
                    # After the end, a transport may be closed under the thread, and late results refused.
                    if self._ended or self._final:
                        return
                    self._failure = self._failure or error
                self._wake()

        # A daemon: a program that ends does not wait for a service.
        thread = threading.Thread(target=guarded, name=f"tinkergym-{name}", daemon=True)
        thread.start()
        return thread


_Groups = Mapping[str, EpisodeGroup]
"""By lease, the group with which an episode is scored."""


def _waits_for(reply: LeaseReply) -> tuple[str, str]:
    """Return why a job waits, as a kind that is logged once and a sentence; empty if it does not wait."""
    if reply.held_seconds:
        # One kind, because the number of seconds decreases with every response.
        return "held", (
            f"waiting up to {reply.held_seconds:.0f} s for the leases of a worker that stopped "
            f"responding; then its episodes are played here"
        )
    where = "is paused" if reply.job_state is JobState.PAUSED else "waits for its place"
    reason = f"the job {where}: {reply.waits_for}" if reply.waits_for else ""
    return reason, reason


def _lost_as_groups(reply: LeaseReply, groups: _Groups) -> LeaseReply:
    """Give up whole groups: an episode scored with others is useless without them."""
    broken = {groups[lease_id] for lease_id in reply.lost if lease_id in groups}
    siblings = [lease_id for lease_id, key in groups.items() if key in broken]
    return reply.model_copy(update={"lost": sorted({*reply.lost, *siblings})}) if broken else reply


def _next_batch(results: deque[EpisodeResult], groups: _Groups, most: int) -> list[EpisodeResult]:
    """Return results to submit together: a group is never split."""
    batch: list[EpisodeResult] = []
    while results and (len(batch) < most or _are_scored_together(groups, batch[-1], results[0])):
        batch.append(results.popleft())
    return batch


def _are_scored_together(groups: _Groups, one: EpisodeResult, other: EpisodeResult) -> bool:
    key = groups.get(one.lease_id)
    return key is not None and key == groups.get(other.lease_id)


def _middle(batch: Sequence[EpisodeResult], groups: _Groups) -> int:
    """Return where a batch can be split, near its middle; 0 if nowhere."""
    places = [n for n in range(1, len(batch)) if not _are_scored_together(groups, batch[n - 1], batch[n])]
    return min(places, key=lambda place: abs(place - len(batch) // 2), default=0)
