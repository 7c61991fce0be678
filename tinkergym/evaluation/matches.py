"""Matches: many concurrent games between named players, and their results.

A player is a policy, a scripted player of the game, or any object with `act(observation) -> str`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, cast

from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.sampler import Deliver, Sampler
from tinkergym.display.progress import episodes_shown
from tinkergym.errors import InvalidRequestError
from tinkergym.evaluation.evaluate import EvaluablePolicy, sampling_seed
from tinkergym.evaluation.shared_table import GameAccount, SharedTable
from tinkergym.games.against_opponent import TextPlayer
from tinkergym.registration.games import make_playable
from tinkergym.rollout.host_pool import MakeEnv
from tinkergym.rollout.play_list import play
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.sampling import SampleRequest
from tinkergym.trajectory.trajectory import Trajectory

_SAMPLING = 3
"""Last word of the entropy of sampling seeds; different in training and evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """A named player."""

    name: str
    plays: str | TextPlayer | EvaluablePolicy
    """A player of the game by name, such as `random`; an object that acts; or a policy."""
    seats: tuple[str, ...] | None = None
    """The agents it can play, for a policy that was trained for some seats only; None means any."""
    step: int | None = None
    """The train step of a version, for ratings over training time."""
    temperature: float = 1.0
    """Sampling temperature of a policy. At 0 a game without chance is the same for every seed."""

    @property
    def policy(self) -> EvaluablePolicy | None:
        """The policy, if it is one."""
        return self.plays if hasattr(self.plays, "sampler") else None  # type: ignore[return-value] # looked at

    def can_play(self, agent: str) -> bool:
        """Whether it can take this seat."""
        return self.seats is None or agent in self.seats


class GameEnd(StrEnum):
    """How a game counts."""

    PLAYED = "played"
    """Finished with legal moves."""
    FORFEIT = "forfeit"
    """A player lost by an illegal move, which says nothing about the others' skill."""
    CUT_OFF = "cut_off"
    """A limit of turns, tokens or time was reached."""
    FAILED = "failed"
    """Something failed; it says nothing about the players."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """One game to play."""

    seats: Mapping[str, Player]
    """Who plays which agent."""
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchResult:
    """The result of one game."""

    match: Match
    end: GameEnd
    returns: Mapping[str, float]
    """The return of each agent; for a failed game, until the failure."""
    forfeits: frozenset[str] = frozenset()
    """The agents that lost by an illegal move."""
    moves: int = 0
    error: str = ""


def play_matches(
    matches: Iterable[Match],
    environment: EnvironmentRef,
    *,
    make_game: Callable[[EnvironmentRef], Any] = make_playable,
    max_concurrent: int = 64,
    progress: bool | None = False,
) -> list[MatchResult]:
    """Play games and return their results, in the order of the matches.

    Args:
        matches: Each has a player for every agent of the game.
        environment: The game's id and settings.
        make_game: Creates it.
        max_concurrent: Games played at once.
        progress: Show on stderr how many have ended; None does so on a terminal.

    Raises:
        InvalidRequestError: A match leaves a seat empty, or assigns one to a player that cannot take it.
    """
    wanted = list(matches)
    room = _Room(environment, make_game)
    plans: list[EpisodePlan] = []
    numbers: dict[str, int] = {}
    scripted: list[tuple[int, Match]] = []
    for number, match in enumerate(wanted):
        plan = room.plan(f"match-{number}", match)
        if plan is None:
            scripted.append((number, match))
        else:
            plans.append(plan)
            numbers[plan.episode_id] = number
    results: dict[int, MatchResult] = {}
    with episodes_shown(len(wanted), progress=progress) as one_more:

        def take(number: int, result: MatchResult) -> None:
            results[number] = result
            one_more()

        for number, match in scripted:
            take(number, room.play_scripts(match))
        sampler = _Samplers(room.policies)
        try:
            for ended in play(
                plans,
                sampler=sampler,
                renderer=room.renderer,
                make_env=cast("MakeEnv", room.make),  # Hosts accept anything with reset and step.
                max_concurrent=max_concurrent,
            ):
                number = numbers[ended.episode_id]
                take(number, room.result(wanted[number], ended.trajectories))
        finally:
            sampler.close()
            room.close()
    return [results[number] for number in range(len(wanted))]


class _Room:
    """The tables of all lineups. A lineup assigns players to seats."""

    def __init__(self, environment: EnvironmentRef, make_game: Callable[[EnvironmentRef], Any]) -> None:
        self._environment, self._make_game = environment, make_game
        game = make_game(environment)
        self.agents: tuple[str, ...] = tuple(getattr(game, "possible_agents", ()))
        game.close()
        if len(self.agents) < 2:
            raise InvalidRequestError(
                f"{environment.id} is not a game for several players",
                hint="use a game such as board/TicTacToe-v0; `tinkergym eval` evaluates a single seat",
                field="environment",
            )
        self._lineups: dict[tuple[tuple[str, int], ...], int] = {}
        self._scripts: list[dict[str, str | TextPlayer]] = []
        self._tables: dict[int, SharedTable] = {}
        self._accounts: list[dict[int, GameAccount]] = []
        self._seeds: list[set[int]] = []
        self.policies: dict[tuple[str, int | None], EvaluablePolicy] = {}

    def plan(self, episode_id: str, match: Match) -> EpisodePlan | None:
        """Return the plan of a match; None if only scripts play it."""
        self._check(match)
        lineup = self._lineup(match)
        if match.seed in self._seeds[lineup]:
            raise InvalidRequestError(f"the same players play the seed {match.seed} twice", field="matches")
        self._seeds[lineup].add(match.seed)
        ref = self._environment.model_copy(update={"kwargs": {**self._environment.kwargs, "lineup": lineup}})
        seats = [
            self._seat(episode_id, agent, number, match, ref)
            for number, agent in enumerate(a for a in self.agents if match.seats[a].policy is not None)
        ]
        return replace(seats[0], others=tuple(seats[1:])) if seats else None

    def make(self, ref: EnvironmentRef) -> SharedTable:
        """Create the table of a lineup."""
        settings = dict(ref.kwargs)
        lineup = settings.pop("lineup")
        assert isinstance(lineup, int)
        game = self._make_game(ref.model_copy(update={"kwargs": settings}))
        return SharedTable(game, self._scripts[lineup], self._accounts[lineup])

    def play_scripts(self, match: Match) -> MatchResult:
        """Play a match without any policy."""
        lineup = self._lineup(match)
        if lineup not in self._tables:
            game = self._make_game(self._environment)
            self._tables[lineup] = SharedTable(game, self._scripts[lineup], self._accounts[lineup])
        self._tables[lineup].reset(seed=match.seed)
        return self.result(match, [])

    def close(self) -> None:
        """Close the tables at which only scripts played."""
        for table in self._tables.values():
            table.close()

    def result(self, match: Match, trajectories: Sequence[Trajectory]) -> MatchResult:
        """Return the result of a match from its table's account and the policies' records."""
        account = self._accounts[self._lineup(match)].pop(match.seed, GameAccount())
        failed = next((one for one in trajectories if not one.completed), None)
        if failed is not None:
            end = GameEnd.FAILED
        elif not account.ended:
            end = GameEnd.CUT_OFF
        else:
            end = GameEnd.FORFEIT if account.forfeits else GameEnd.PLAYED
        return MatchResult(
            match=match,
            end=end,
            returns=dict(account.returns),
            forfeits=frozenset(account.forfeits),
            moves=account.moves,
            error="" if failed is None else f"{failed.stop_reason.value}: {failed.error}",
        )

    def renderer(self, key: str) -> Any:
        """Return the renderer of a policy; policies on one model may have different chat templates."""
        return next(one for named, one in self.policies.items() if str(named) == key).renderer

    def _check(self, match: Match) -> None:
        if set(match.seats) != set(self.agents):
            raise InvalidRequestError(
                f"the game has the agents {', '.join(self.agents)}, but the match has players for "
                f"{', '.join(match.seats)}",
                field="seats",
            )
        for agent, player in match.seats.items():
            if not player.can_play(agent):
                raise InvalidRequestError(
                    f"{player.name} only plays {', '.join(player.seats or ())}, not {agent}", field="seats"
                )

    def _lineup(self, match: Match) -> int:
        key = tuple((match.seats[agent].name, id(match.seats[agent].plays)) for agent in self.agents)
        if key not in self._lineups:
            self._lineups[key] = len(self._scripts)
            self._accounts.append({})
            self._seeds.append(set())
            self._scripts.append(
                {
                    agent: player.plays  # type: ignore[misc] # no policy, so a name or an actor
                    for agent, player in match.seats.items()
                    if player.policy is None
                }
            )
        return self._lineups[key]

    def _seat(
        self, episode_id: str, agent: str, number: int, match: Match, ref: EnvironmentRef
    ) -> EpisodePlan:
        player = match.seats[agent]
        policy = player.policy
        assert policy is not None
        self.policies[policy.name, policy.version] = policy
        sampling = {
            "temperature": player.temperature,
            "seed": sampling_seed(match.seed, self.agents.index(agent), _SAMPLING),
        }
        return EpisodePlan.for_policy(
            policy,
            policy.decoding.model_copy(update=sampling),
            episode_id=episode_id,
            seed=match.seed,
            model=str((policy.name, policy.version)),
            environment=ref,
            tools=policy.tools,
            agent=agent,
            seat=number,
            is_game=True,
        )


class _Samplers:
    """Sends each request to the sampler of its policy."""

    def __init__(self, policies: Mapping[tuple[str, int | None], EvaluablePolicy]) -> None:
        self._policies = dict(policies)
        self._open: dict[tuple[str, int | None], Sampler] = {}

    def submit(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        by_policy: dict[tuple[str, int | None], list[SampleRequest]] = {}
        for request in requests:
            by_policy.setdefault((request.policy, request.policy_version), []).append(request)
        for key, own in by_policy.items():
            if key not in self._open:
                self._open[key] = self._policies[key].sampler()
            self._open[key].submit(own, deliver)

    def close(self) -> None:
        for sampler in self._open.values():
            sampler.close()
