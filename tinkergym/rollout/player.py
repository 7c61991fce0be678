"""EpisodePlayer: many concurrent episodes, driven by one thread.

Connects agent loops with environments on one side and a sampler on the other. All events arrive in one queue;
sampling requests are sent in batches.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from tinkergym.agent.agent_loop import AgentLoop, AgentState
from tinkergym.agent.coordinator import Coordinator
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.agent.sampler import Sampler
from tinkergym.errors import InternalServiceError, TinkerGymError, from_wire
from tinkergym.rollout.call_register import CallRegister
from tinkergym.rollout.environment_host import AnyEnv, Report
from tinkergym.rollout.executors import Executor, MakeEnv, executor_called
from tinkergym.rollout.group_scores import GroupScoring
from tinkergym.rollout.host_pool import HostPool
from tinkergym.rollout.played_episode import AnyRenderer, PlayedEpisode, Recorder, late_text, overdue_text
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.events import ErrorView
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest
from tinkergym.trajectory.trajectory import FAILED_REASONS, StopReason

_TICK_SECONDS = 0.05
"""How often deadlines are checked."""
_LINGER_SECONDS = 0.002
"""How long requests and results wait for environments that were called together with those that responded."""

_SPOILED = {StopReason.ENVIRONMENT_ERROR, StopReason.ENVIRONMENT_TIMEOUT, StopReason.INVALID_REWARD}
"""After these stop reasons an environment is not used again."""


Answers = Sequence[Completion | SampleFailure]


class EpisodePlayer:
    """Plays episodes and returns their results.

    `start`, `drop`, `poll` and `close` belong to one thread; `wake` may be called from any.
    """

    def __init__(
        self,
        *,
        sampler: Sampler,
        make_env: MakeEnv,
        executor: Executor | None = None,
        register: CallRegister | None = None,
        recorder: Recorder | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Connect the parts.

        Args:
            sampler: Samples tokens; the caller closes it.
            make_env: Creates an environment; called where that environment runs.
            executor: Where environments run; None uses each plan's setting.
            register: Records the calls in progress, in case this process dies.
            recorder: Records the episodes, if all environments are agent programs; the caller closes it.
            clock: Seconds, monotonic.
        """
        self._sampler = sampler
        self._recorder = recorder
        self._clock = clock
        # Reports of environments, completions from the sampler, and None for a wake-up.
        self._inbox: SimpleQueue[Sequence[Report] | Answers | None] = SimpleQueue()
        self._make_env, self._executor, self._register = make_env, executor, register
        self._hosts: dict[str, HostPool] = {}
        self._waiting: deque[tuple[EpisodePlan, AnyRenderer]] = deque()
        self._call_ids = itertools.count(1)
        self._episodes: dict[str, PlayedEpisode] = {}
        self._by_request: dict[str, PlayedEpisode] = {}
        self._by_call: dict[int, PlayedEpisode] = {}
        self._fresh_calls: set[int] = set()
        self._requests: list[SampleRequest] = []
        self._finished: list[EpisodeResult] = []
        self._groups = GroupScoring(self._call_ids, clock)
        self._next_tick = 0.0

    @property
    def active(self) -> int:
        """The number of episodes being played and of groups being scored."""
        return len(self._episodes) + len(self._waiting) + self._groups.active

    def start(self, plan: EpisodePlan, renderer: AnyRenderer) -> None:
        """Begin an episode. One that is already being played, by its `session_id`, continues.

        Without an executor from the caller, it waits for room if necessary.

        Args:
            plan: With several seats, its environment is a PettingZoo game.
            renderer: The model's renderer, or a function from a model's name to its renderer.
        """
        if plan.session_id in self._episodes:
            return
        hosts = self._hosts_for(plan)
        assert plan.environment is not None, "the player creates environments by reference"
        if self._executor is None and (hosts.full or hosts.holds_back(plan.environment, plan.data_sha256)):
            self._waiting.append((plan, renderer))
        else:
            self._begin(plan, renderer, hosts)

    def _hosts_for(self, plan: EpisodePlan) -> HostPool:
        """Return the pool of an episode: the caller's executor, or the plan's own."""
        name = "" if self._executor is not None else plan.executor
        if name not in self._hosts:
            executor = self._executor or executor_called(name)
            self._hosts[name] = HostPool(
                executor, self._make_env, self._inbox.put, self._register, clock=self._clock
            )
        return self._hosts[name]

    def _begin(self, plan: EpisodePlan, renderer: AnyRenderer, hosts: HostPool) -> None:
        assert plan.environment is not None, "the player creates environments by reference"
        host, is_new = hosts.take(plan.environment, plan.data_sha256)
        ends_at = self._clock() + plan.limits.episode_timeout_seconds
        loop = (
            _loop_of(plan, renderer, self._clock)
            if self._recorder is None
            else self._recorder.open(plan, _by_model(renderer), self._sampler)
        )
        episode = PlayedEpisode(plan, loop, renderer, hosts, host, ends_at)
        self._episodes[plan.session_id] = episode
        if is_new:
            # Creating an environment may take as long as a reset, so it has its own time limit.
            self._call(episode, "make", _nothing)
        else:
            self._call(episode, *episode.first_call())

    def drop(self, session_id: str) -> None:
        """Stop an episode without a result, because its lease is lost."""
        self._waiting = deque(item for item in self._waiting if item[0].session_id != session_id)
        self._groups.drop(session_id)
        episode = self._episodes.get(session_id)
        if episode is not None:
            episode.loop.fail(StopReason.ABANDONED, "the lease was lost")
            self._release(episode)

    def poll(self, timeout_seconds: float) -> list[EpisodeResult]:
        """Play until an episode ends, `wake` is called or the time is up; return the results."""
        ends_at = self._clock() + timeout_seconds
        woken = False
        while not (woken or self._finished):
            # Sending comes first: `start` may have been called since, and a sampler may respond at once.
            self._send()
            left = ends_at - self._clock()
            if left <= 0:
                break
            # Without an episode, played, held back or scored, there is no deadline to check.
            woken = self._handle_events(min(left, _TICK_SECONDS) if self.active else left)
            self._check_deadlines()
        self._send()
        finished, self._finished = self._finished, []
        return finished

    def wake(self) -> None:
        """Make `poll` return early."""
        self._inbox.put(None)

    def close(self, timeout_seconds: float = 5.0) -> None:
        """Drop all episodes and close all environments. Those that do not end in time are abandoned."""
        self._waiting.clear()
        for session_id, episode in list(self._episodes.items()):
            if not episode.call:
                self.drop(session_id)
            elif not isinstance(episode.loop, AgentLoop | Coordinator):
                episode.loop.fail(StopReason.ABANDONED, "the worker ended")
        # The others' environments are busy. That is no reason to distrust them: their pools wait for them.
        self._episodes.clear()
        self._by_call.clear()
        for hosts in self._hosts.values():
            hosts.close(timeout_seconds)

    # --- what happens ---

    def _handle_events(self, wait_seconds: float) -> bool:
        """Handle events, waiting for them if necessary; return whether `wake` was called."""
        woken = False
        lingers_until = 0.0
        while True:
            try:
                event = (
                    self._inbox.get(timeout=wait_seconds) if wait_seconds > 0 else self._inbox.get_nowait()
                )
            except Empty:
                event = ()
            if event is None:
                woken = True
            for item in event or ():
                if isinstance(item, Report):
                    self._reported(item)
                else:
                    self._answered(item)
            wait_seconds = 0.0
            if not self._inbox.empty():
                continue
            if woken or not (self._requests or self._finished) or not self._fresh_calls:
                return woken
            # Environments that were called together usually respond together, and a batch is worth a short
            # wait, both for sampling requests and for results, which are stored in one transaction.
            now = self._clock()
            lingers_until = lingers_until or now + _LINGER_SECONDS
            wait_seconds = lingers_until - now
            if wait_seconds <= 0:
                self._fresh_calls.clear()
                return woken

    def _answered(self, answer: Completion | SampleFailure) -> None:
        episode = self._by_request.pop(answer.request_id, None)
        if episode is None or episode.loop.state is not AgentState.GENERATING:
            return  # Dropped or timed out meanwhile.
        assert isinstance(episode.loop, AgentLoop | Coordinator), "a program's calls are answered elsewhere"
        if isinstance(answer, SampleFailure):
            view = answer.error
            episode.loop.fail(StopReason.SAMPLING_FAILED, f"{view.type}: {from_wire(view.model_dump())}")
        else:
            try:
                action = episode.loop.receive(answer)
            except InternalServiceError:
                pass  # The loop has ended and has the reason.
            else:
                self._call(episode, "step", lambda env: env.step(action))
                return
        self._finish(episode)

    def _reported(self, report: Report) -> None:
        self._fresh_calls.discard(report.call_id)
        if (scored := self._groups.reported(report)) is not None:
            self._finished += scored
            self._start_waiting()
            return
        episode = self._by_call.pop(report.call_id, None)
        if episode is None:
            return
        call, episode.call = episode.call, ""
        limit = episode.limit_seconds(call)
        if report.seconds > limit:
            # Not every executor can interrupt a call, and a report may arrive before the deadline is checked.
            episode.loop.fail(StopReason.ENVIRONMENT_TIMEOUT, late_text(call, report.seconds, limit))
            self._finish(episode)
        elif report.error:
            episode.loop.fail(report.stop_reason, report.error)
            self._finish(episode)
        elif call == "make":
            self._call(episode, *episode.first_call())
        elif call == "play":
            assert not isinstance(episode.loop, AgentLoop | Coordinator)
            episode.loop.finish(report.value)
            self._finish(episode)
        else:
            self._go_on(episode, episode.taken(call, report.value))

    def _go_on(self, episode: PlayedEpisode, request: SampleRequest | None) -> None:
        if request is not None and self._clock() >= episode.ends_at:
            episode.loop.fail(StopReason.EPISODE_TIMEOUT)
            request = None
        if request is None:
            self._finish(episode)
        else:
            episode.request_id = request.request_id
            self._by_request[request.request_id] = episode
            self._requests.append(request)

    def _check_deadlines(self) -> None:
        now = self._clock()
        if now < self._next_tick:
            return
        self._next_tick = now + _TICK_SECONDS
        for episode in list(self._episodes.values()):
            if episode.call and now >= episode.call_ends_at:
                text = overdue_text(episode.host, episode.call, episode.limit_seconds(episode.call))
                episode.loop.fail(StopReason.ENVIRONMENT_TIMEOUT, text)
                self._finish(episode)
            elif episode.loop.state is AgentState.GENERATING and now >= episode.ends_at:
                episode.loop.fail(
                    StopReason.EPISODE_TIMEOUT, "the time ran out while the policy was sampling"
                )
                self._finish(episode)
        self._finished += self._groups.overdue(now)
        self._start_waiting()  # A pause may be over.

    # --- what follows ---

    def _call(self, episode: PlayedEpisode, name: str, function: Callable[[AnyEnv], Any]) -> None:
        episode.call, episode.call_id = name, next(self._call_ids)
        episode.call_ends_at = self._clock() + episode.limit_seconds(name)
        self._by_call[episode.call_id] = episode
        self._fresh_calls.add(episode.call_id)
        episode.host.episode_id = episode.plan.episode_id
        episode.host.call(episode.call_id, function)

    def _send(self) -> None:
        if not self._requests:
            return
        requests, self._requests = self._requests, []
        try:
            self._sampler.submit(requests, self._inbox.put)
        except Exception as error:  # The sampler's edge: its failure fails every request.
            self._inbox.put(_failures(error, requests))

    def _finish(self, episode: PlayedEpisode) -> None:
        plan = episode.plan
        if episode.loop.stop_reason in FAILED_REASONS and plan.attempt < plan.retries:
            # First: `start` ignores an episode that is still listed.
            self._release(episode)
            self.start(plan.again(), episode.renderer)
            return
        # Built from checked parts; see Ledger.segments.
        result = EpisodeResult.model_construct(
            episode_id=plan.episode_id,
            lease_id=plan.lease_id,
            trajectories=episode.trajectories(),
        )
        self._release(episode)
        self._finished += self._groups.add(plan, result, episode.hosts) if plan.group_size else [result]

    def _release(self, episode: PlayedEpisode) -> None:
        del self._episodes[episode.plan.session_id]
        self._by_request.pop(episode.request_id, None)
        reason = episode.loop.stop_reason
        if episode.call:
            self._by_call.pop(episode.call_id, None)
            self._fresh_calls.discard(episode.call_id)
            episode.hosts.discard(episode.host, hangs=True)
        elif reason in _SPOILED:
            episode.hosts.discard(episode.host, hangs=False)
        else:
            episode.host.end_episode()
            episode.hosts.give_back(episode.host)
        if not episode.hosts.full:
            self._start_waiting()

    def _start_waiting(self) -> None:
        for _ in range(len(self._waiting)):
            # Episodes that still find no room queue again, in the same order.
            self.start(*self._waiting.popleft())


def _loop_of(plan: EpisodePlan, renderer: AnyRenderer, clock: Callable[[], float]) -> AgentLoop | Coordinator:
    loops = {
        seat.agent: AgentLoop(renderer if isinstance(renderer, Renderer) else renderer(seat.model), seat)
        for seat in plan.seats
    }
    is_game = plan.others or plan.table or plan.is_game
    return Coordinator(loops, clock=clock) if is_game else loops[plan.agent]


def _by_model(renderer: AnyRenderer) -> Callable[[str], Renderer]:
    return (lambda _: renderer) if isinstance(renderer, Renderer) else renderer


def _nothing(env: AnyEnv) -> None:
    """Make the host create its environment."""


def _failures(error: Exception, requests: Sequence[SampleRequest]) -> list[SampleFailure]:
    """Return an error of the sampler as the failure of each of its requests."""
    plain = {"type": type(error).__name__, "message": str(error)}
    view = ErrorView(**(error.to_wire() if isinstance(error, TinkerGymError) else plain))
    return [SampleFailure(request_id=request.request_id, error=view) for request in requests]
