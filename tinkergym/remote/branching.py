"""Continue a stored episode from one of its turns: the same seed and actions, then other answers.

Runs where the episode's environment can be made: in a script, or in a process of the service.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import (
    InvalidRequestError,
    NotReplayableError,
    ServiceUnavailableError,
    from_wire,
)
from tinkergym.evaluation.evaluate import sampling_seed
from tinkergym.remote.api import Api
from tinkergym.remote.http_sampler import HttpSampler
from tinkergym.rollout.executors import made
from tinkergym.rollout.game_table import seated
from tinkergym.rollout.host_pool import MakeEnv
from tinkergym.rollout.local_environment import EnvSource, for_job
from tinkergym.rollout.play_list import play
from tinkergym.rollout.recorded_start import (
    Given,
    RecordedStart,
    Written,
    recorded_turns,
    require_replayable,
)
from tinkergym.schema.episodes import EpisodeRequest, EpisodeResult
from tinkergym.schema.evaluation import BranchRequest, EvaluationLine
from tinkergym.schema.ids import EpisodeId, PolicyRef, SeatRef
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.summaries import EpisodeView
from tinkergym.schema.views import RendererBundle
from tinkergym.trajectory.trajectory import Trajectory

_BRANCH = 5
"""Last word of the entropy of sampling seeds; different in training and evaluation."""
_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Branches:
    """Continuations of a stored episode from one of its turns."""

    original: Trajectory
    turn: int
    """The first turn that was played anew, counted from 1."""
    trajectories: tuple[Trajectory, ...]
    """The seat's record in each continuation, from the episode's beginning."""
    others: tuple[tuple[Trajectory, ...], ...] = ()
    """Those of the other seats of a game."""

    @property
    def returns(self) -> list[float]:
        """The return of each continuation that completed."""
        return [one.episode_return for one in self.trajectories if one.completed]

    @property
    def mean(self) -> float | None:
        """The mean of `returns`; None without any."""
        return sum(self.returns) / len(self.returns) if self.returns else None

    def __str__(self) -> str:
        returns = ", ".join(f"{value:g}" for value in sorted(self.returns, reverse=True)) or "none"
        mean = "" if self.mean is None else f", mean {self.mean:.3g}"
        failed = len(self.trajectories) - len(self.returns)
        lost = f", {failed} failed" if failed else ""
        return (
            f"returns from turn {self.turn} on: {returns}{mean}{lost}; "
            f"the episode itself: {self.original.episode_return:g}"
        )


def seat_of(record: EpisodeResult, agent: str, turn: int) -> Trajectory:
    """Return the record of the seat whose turn is to be played anew.

    Raises:
        InvalidRequestError: There is no such seat or turn, or several seats of which none is named.
    """
    seats = {one.agent: one for one in record.trajectories}
    if not agent and len(seats) > 1:
        raise InvalidRequestError(
            "the episode has several seats", hint=f"name one of {', '.join(seats)}", field="agent"
        )
    found = seats.get(agent) if agent else next(iter(seats.values()))
    if found is None:
        raise InvalidRequestError(
            f"the episode has no seat {agent!r}", hint=f"its seats: {', '.join(seats)}", field="agent"
        )
    if turn > len(found.turns) + 1:
        raise InvalidRequestError(
            f"{found.agent} has {len(found.turns)} turns", hint="count them from 1", field="turn"
        )
    return found


def play_branches(
    api: Api, view: EpisodeView, wanted: BranchRequest, make_env: MakeEnv
) -> Iterator[EvaluationLine]:
    """Play the continuations of a stored episode and yield each, under its number, as it ends.

    Raises:
        NotReplayableError: The environment says that it cannot be replayed, or what it shows differs from the
            record.
        InvalidRequestError: There is no such turn, or no such policy for this episode.
    """
    own = seat_of(view.episode, wanted.agent, wanted.turn)
    if view.request is None:
        raise NotReplayableError(f"{view.episode.episode_id} cannot be replayed: {view.why_no_request}")
    with closing(made(make_env, view.request.environment)) as env:
        require_replayable(seated(env), view.request.environment.id)
    renderers = _Renderers(api)
    branch = _Branch(wanted, view.request, view.episode, own, renderers)
    plans = [branch.plan(number) for number in range(max(1, wanted.n))]
    numbers = {plan.lease_id: number for number, plan in enumerate(plans)}
    given = {session: answers for plan in plans for session, answers in branch.given(plan)}
    sampler = RecordedStart(HttpSampler(api.connection, "/v1/sample"), given, renderers(branch.model).decode)
    try:
        for result in play(
            plans,
            sampler=sampler,
            renderer=renderers,
            make_env=make_env,
            max_concurrent=_AT_ONCE,
        ):
            number = numbers[result.lease_id]
            for plan in plans[number].seats:
                sampler.require_repeated(plan.session_id)
            seats = {one.agent: one for one in result.trajectories}
            yield EvaluationLine(
                episode_id=str(number), trajectory=seats.pop(own.agent), others=list(seats.values())
            )
    finally:
        sampler.close()


def branch_job(
    api: Api, view: JobView, episode_id: str, wanted: BranchRequest, env: EnvSource | None
) -> Branches:
    """Continue a job's episode where it was played: in the service, or in this process; see `Job.branch`."""
    spec = view.spec.played
    if spec is None:
        raise InvalidRequestError(f"{view.job_id} is of kind {view.spec.kind!r}, which plays no episodes")
    found = EpisodeId.parse(episode_id)
    stored = api.episode(view.job_id, episode_id)
    original = seat_of(stored.episode, wanted.agent, wanted.turn)
    if env is None and spec.rollout == "server":
        lines = api.branch(view.job_id, episode_id, wanted)
    else:
        ref = spec.environment_at(found.step, found.index // spec.groups.size)
        lines = play_branches(api, stored, wanted, for_job(env, ref))
    ended = []
    for line in lines:
        if line.error is not None:
            raise from_wire(line.error.model_dump())
        ended.append(line)
    missing = max(1, wanted.n) - len(ended)
    if missing:
        raise ServiceUnavailableError(
            f"the service broke off with {missing} continuations to play", hint="branch again"
        )
    ended.sort(key=lambda line: int(line.episode_id))
    return Branches(
        original=original,
        turn=wanted.turn,
        trajectories=tuple(line.trajectory for line in ended if line.trajectory is not None),
        others=tuple(tuple(line.others) for line in ended),
    )


class _Renderers:
    """The renderers of seats by name, each fetched once."""

    def __init__(self, api: Api) -> None:
        self._api, self._known = api, dict[str, Renderer]()
        self._bundles = dict[str, RendererBundle]()

    def __call__(self, name: str) -> Renderer:
        if name not in self._known:
            self._known[name] = Renderer.from_bundle(self._bundle(name))
        return self._known[name]

    def tokenizer(self, name: str) -> str:
        """Return what turns text into this model's ids."""
        return self._bundle(name).tokenizer_json

    def _bundle(self, name: str) -> RendererBundle:
        if name not in self._bundles:
            self._bundles[name] = self._api.renderer(name)
        return self._bundles[name]

    def of_policy(self, reference: str) -> tuple[str, int | None, str]:
        """Return a policy's name, its version (None: the newest) and its base model."""
        if not PolicyRef.is_meant(reference):
            return reference, None, reference
        job_id, version, agent = self._api.trained_policy(PolicyRef.parse(reference, field="policy"))
        name = str(PolicyRef(owner=job_id, agent=agent))
        return name, version, self._api.job(job_id).spec.for_agent(agent).model


class _Branch:
    """What the continuations of one episode share."""

    def __init__(
        self,
        wanted: BranchRequest,
        request: EpisodeRequest,
        record: EpisodeResult,
        own: Trajectory,
        renderers: _Renderers,
    ) -> None:
        self._wanted, self._request, self._own = wanted, request, own
        self._name = f"branch-{uuid.uuid4().hex[:12]}"
        self.model = request.seats[own.agent].model
        self._policy = self._checked(wanted.policy, renderers) if wanted.policy else None
        turn = own.turns[wanted.turn - 1] if wanted.turn <= len(own.turns) else None
        before = None if turn is None else turn.move
        self._given: dict[str, list[Given]] = {}
        for seat in record.trajectories:
            kept = sum(before is None or (one.move or 0) < before for one in seat.turns)
            count = wanted.turn - 1 if seat is own else kept
            self._given[seat.agent] = [*recorded_turns(seat, count)]
        renderer = renderers(self.model)
        self._given[own.agent] += [Written.by_hand(text, renderer) for text in wanted.actions]

    def plan(self, number: int) -> EpisodePlan:
        """Return the plan of one continuation."""
        request = self._request.model_copy(
            update={"lease_id": f"{self._name}-{number}", "retries": 0, "group_size": 0}
        )
        first, *others = EpisodePlan.from_request(request).seats
        return replace(self._seat(first, number), others=tuple(self._seat(one, number) for one in others))

    def given(self, plan: EpisodePlan) -> Iterator[tuple[str, list[Given]]]:
        """Yield what is known of each seat, by its session."""
        for seat in plan.seats:
            yield str(SeatRef(plan.lease_id, seat.seat)), self._given[seat.agent]

    def _seat(self, plan: EpisodePlan, number: int) -> EpisodePlan:
        seed = sampling_seed(self._wanted.seed, number, plan.seat, _BRANCH)
        changed: dict[str, Any] = {"seed": seed}
        newest = self._request.seats[plan.agent].is_newest
        policy, version = plan.policy, None if newest else plan.policy_version
        if plan.agent == self._own.agent:
            if self._wanted.temperature is not None:
                changed["temperature"] = self._wanted.temperature
            if self._policy is not None:
                policy, version = self._policy
            if not self._wanted.n:
                # Only its own: another seat that met the limit first would end the game before the seat sees
                # what came of its answer.
                most = self._wanted.turn - 1 + len(self._wanted.actions)
                plan = replace(plan, limits=plan.limits.model_copy(update={"max_turns": most}))
        decoding = plan.decoding.model_copy(update=changed)
        return replace(plan, policy=policy, policy_version=version, decoding=decoding)

    def _checked(self, reference: str, renderers: _Renderers) -> tuple[str, int | None]:
        """Return the policy that continues, and its version."""
        name, version, model = renderers.of_policy(reference)
        if renderers.tokenizer(model) != renderers.tokenizer(self.model):
            raise InvalidRequestError(
                f"{reference} has another tokenizer than the episode, so it cannot continue its tokens",
                hint="name a checkpoint, or a model of the same family",
                field="policy",
            )
        return name, version
