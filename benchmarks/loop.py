"""The agent loop without a model: the cost of a turn, the effect of a slow environment, and exact tokens."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import gymnasium as gym

from benchmarks.common import Figure, write_result
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.agent.sampler import Deliver
from tinkergym.core import TextEnv
from tinkergym.messages import observation_messages
from tinkergym.registration.environments import make_environment, registered
from tinkergym.rollout.executors import Executor, InlineExecutor, ThreadExecutor
from tinkergym.rollout.play_list import play
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits, Reasoning
from tinkergym.schema.sampling import Completion, SampleRequest
from tinkergym.testing import (
    FAMILIES,
    RandomTokenSampler,
    RecordingSampler,
    byte_bundle,
    family_bundle,
    ledger_violations,
)

GAME = "board/TicTacToeVs-v0"
MOVES = [f"{column}{row}" for column in "abc" for row in "123"]
CONCURRENT = 512
SLEEP_SECONDS = 30.0


class InstantPolicy:
    """Answers at once with a move chosen by the request's seed, at negligible cost."""

    def __init__(self, renderer: Renderer) -> None:
        self._answers = [renderer.encode_answer(move) for move in MOVES]

    def submit(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Answer all requests before returning."""
        deliver([self._complete(request) for request in requests])

    def close(self) -> None:
        """Do nothing."""

    def _complete(self, request: SampleRequest) -> Completion:
        ids = self._answers[request.seed * 7 % len(MOVES)]
        return Completion(
            request_id=request.request_id,
            token_ids=list(ids),
            sampling_logprobs=[-1.0] * len(ids),
            finish_reason="stop",
            policy_version=0,
        )


class Sleeper(TextEnv):
    """Ten turns; optionally sleeps once."""

    def __init__(self, sleeps: bool = False) -> None:
        self._sleeps = sleeps

    def start(self, options: dict[str, object]) -> str:
        """Show the first number."""
        self._left = 10
        return "10 left"

    def reply(self, action: str) -> tuple[str, float, bool]:
        """Count down."""
        if self._sleeps:
            time.sleep(SLEEP_SECONDS)
            self._sleeps = False
        self._left -= 1
        return f"{self._left} left", 0.0, self._left == 0


def measure() -> list[Figure]:
    """Measure all three."""
    turns = turn_cost()
    slowed = slow_neighbour()
    tokens = random_tokens()
    figures = [
        Figure(
            what="loop overhead per turn, instant policy, tic-tac-toe, one core",
            asked="<= 1 ms, >= 2,000 turns/s",
            measured=f"{turns['thread'].milliseconds:.3f} ms, {turns['thread'].per_second:,.0f} turns/s "
            f"(inline: {turns['inline'].milliseconds:.3f} ms, {turns['inline'].per_second:,.0f} turns/s)",
            reached=turns["thread"].milliseconds <= 1.0 and turns["thread"].per_second >= 2000,
        ),
        Figure(
            what=f"{CONCURRENT} concurrent episodes, one environment sleeping {SLEEP_SECONDS:g} s",
            asked="the others lose <= 5 % throughput",
            measured=f"{slowed.lost:+.1%} of {slowed.undisturbed:,.0f} turns/s",
            reached=slowed.lost <= 0.05,
        ),
        Figure(
            what=f"random tokens, {tokens.episodes:,} episodes, {len(tokens.environments)} environments, "
            f"{len(tokens.families)} template families",
            asked="0 violations of the ledger's invariants, 1,000 episodes",
            measured=f"{tokens.violations} in {tokens.turns:,} turns, {tokens.segments:,} segments",
            reached=tokens.violations == 0 and tokens.episodes >= 1000,
        ),
    ]
    details = {
        "turn_seconds": {name: cost.seconds for name, cost in turns.items()},
        "turn_processor_seconds": {name: cost.processor_seconds for name, cost in turns.items()},
        "slow_neighbour": {"undisturbed": slowed.undisturbed, "disturbed": slowed.disturbed},
        "random_tokens": {"environments": tokens.environments, "families": tokens.families},
    }
    return write_result("loop", figures, details)


# --- the cost of a turn ---


@dataclass(frozen=True, slots=True)
class TurnCost:
    """Seconds per turn of several runs, in wall time and in processor time."""

    seconds: list[float]
    processor_seconds: list[float]

    @property
    def milliseconds(self) -> float:
        """The median."""
        return 1000 * statistics.median(self.seconds)

    @property
    def per_second(self) -> float:
        """The median."""
        return 1 / statistics.median(self.seconds)


def turn_cost(*, episodes: int = 2000, runs: int = 5) -> dict[str, TurnCost]:
    """Play on one core, including the environment; the first run is a warm-up."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        renderer = Renderer.from_bundle(byte_bundle(context_length=4096))
        policy = InstantPolicy(renderer)
        executors: dict[str, Executor] = {"thread": ThreadExecutor(), "inline": InlineExecutor()}
        costs = {}
        for name, executor in executors.items():
            measured = [_one_run(policy, renderer, executor, episodes) for _ in range(runs + 1)][1:]
            costs[name] = TurnCost([clock for clock, _ in measured], [worked for _, worked in measured])
        return costs
    finally:
        os.sched_setaffinity(0, cores)


def _one_run(
    policy: InstantPolicy, renderer: Renderer, executor: Executor, episodes: int
) -> tuple[float, float]:
    began, worked, turns = time.perf_counter(), time.process_time(), 0
    plans = (_plan(f"e{i}", GAME, seed=i, sampling_seed=13 * i) for i in range(episodes))
    for result in play(
        plans, sampler=policy, renderer=renderer, make_env=make_environment, executor=executor
    ):
        turns += len(result.trajectory.turns)
    return (time.perf_counter() - began) / turns, (time.process_time() - worked) / turns


# --- the effect of a slow environment ---


@dataclass(frozen=True, slots=True)
class Slowed:
    """Turns per second of the episodes that do not sleep."""

    undisturbed: float
    disturbed: float

    @property
    def lost(self) -> float:
        """The share lost to the sleeper."""
        return 1 - self.disturbed / self.undisturbed


def slow_neighbour() -> Slowed:
    """Compare `SLEEP_SECONDS` of play next to a sleeper with the same time before and after without one."""
    _turns_per_second(2.0, sleeper=False)
    before = _turns_per_second(SLEEP_SECONDS / 2, sleeper=False)
    disturbed = _turns_per_second(SLEEP_SECONDS, sleeper=True)
    after = _turns_per_second(SLEEP_SECONDS / 2, sleeper=False)
    return Slowed(undisturbed=(before + after) / 2, disturbed=disturbed)


def _turns_per_second(seconds: float, *, sleeper: bool) -> float:
    renderer = Renderer.from_bundle(byte_bundle(context_length=4096))
    turns, began = 0, time.perf_counter()

    def plans() -> Iterator[EpisodePlan]:
        if sleeper:
            yield _plan("sleeper", "sleeper")
        number = 0
        while time.perf_counter() - began < seconds:
            yield _plan(f"e{number}", "awake")
            number += 1

    def make(reference: EnvironmentRef) -> gym.Env[str, str]:
        return Sleeper(reference.id == "sleeper")

    for result in play(
        plans(),
        sampler=InstantPolicy(renderer),
        renderer=renderer,
        make_env=make,
        max_concurrent=CONCURRENT,
        executor=ThreadExecutor(CONCURRENT),
    ):
        if result.episode_id == "sleeper":
            break
        turns += len(result.trajectory.turns)
        ended = time.perf_counter()
    return turns / (ended - began)


# --- whether tokens stay the same ---


@dataclass(frozen=True, slots=True)
class RandomTokens:
    """What was played, and what was wrong."""

    environments: list[str]
    families: list[str]
    episodes: int
    turns: int
    segments: int
    violations: int


def random_tokens(*, episodes: int = 1000) -> RandomTokens:
    """Play random tokens in every installed environment with every template family."""
    environments = [name for name in registered() if _shows_text(name)]
    cases: list[tuple[str, Reasoning]] = [(f, r) for f in FAMILIES for r in ("keep", "drop")]
    per_case = -(-episodes // (len(cases) * len(environments)))
    played = turns = segments = violations = 0
    for family, reasoning in cases:
        renderer = Renderer.from_bundle(family_bundle(family))
        sampler = RecordingSampler(RandomTokenSampler(renderer.vocab_size))
        plans = [
            _plan(f"{name}-{seed}", name, seed=seed, sampling_seed=1000 * seed, reasoning=reasoning)
            for name in environments
            for seed in range(per_case)
        ]
        for result in play(plans, sampler=sampler, renderer=renderer, make_env=make_environment):
            session, trajectory = sampler.session(result.episode_id), result.trajectory
            violations += len(ledger_violations(trajectory, session.completions, session.requests))
            played, turns = played + 1, turns + len(trajectory.turns)
            segments += len(trajectory.segments)
    return RandomTokens(environments, list(FAMILIES), played, turns, segments, violations)


def _shows_text(name: str) -> bool:
    try:
        env = make_environment(EnvironmentRef(id=name))
        observation_messages(env.reset(seed=0)[0])
        env.close()
    except Exception:  # a requirement of the pack that is missing here
        return False
    return True


def _plan(
    episode_id: str,
    environment: str,
    *,
    seed: int = 0,
    sampling_seed: int = 0,
    reasoning: Reasoning = "keep",
) -> EpisodePlan:
    return EpisodePlan(
        episode_id=episode_id,
        seed=seed,
        policy="p",
        environment=EnvironmentRef(id=environment),
        decoding=Decoding(max_turn_tokens=16, seed=sampling_seed),
        limits=Limits(max_turns=12),
        reasoning=reasoning,
    )
