"""Shared by benchmarks of games with several seats: versions against fixed players, on fixed seeds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

import tinkergym as tg
from tinkergym.evaluation.matches import GameEnd, Match, Player, play_matches
from tinkergym.evaluation.statistics import mean_interval
from tinkergym.schema.events import StepEvent
from tinkergym.schema.jobs.parts import EnvironmentRef

HELD_OUT_SEED = 3_000_000
"""Measured games use seeds from here on; training seeds are 31-bit hashes of the job's seed."""

ALGORITHM = tg.GRPO(
    group_size=8,
    groups_per_step=16,
    learning_rate=5e-3,
    lr_schedule="linear",
    entropy_coefficient=0.05,
    credit="turn",
    discount=0.6,
)
"""As in the tic-tac-toe figure against a random opponent."""


def returns_at(
    agent: str, seats: Mapping[str, Player], game: str, seeds: Iterable[int], **kwargs: Any
) -> list[float]:
    """Return an agent's return in each completed game."""
    matches = [Match(seats=seats, seed=seed) for seed in seeds]
    results = play_matches(matches, EnvironmentRef(id=game, kwargs=kwargs))
    return [result.returns[agent] for result in results if result.end is not GameEnd.FAILED]


def described(returns: list[float]) -> tuple[float, float, float]:
    """Return the mean with its 95 % interval."""
    low, high = mean_interval(returns)
    return sum(returns) / len(returns), low, high


def followed(job: tg.Job) -> tuple[list[StepEvent], float]:
    """Return a job's steps and their seconds."""
    started = time.perf_counter()
    steps = [event.body for event in job.events() if isinstance(event.body, StepEvent)]
    job.wait()
    return steps, time.perf_counter() - started


def curve(steps: Iterable[StepEvent], metric: str) -> list[float]:
    """Return a metric over the steps."""
    return [round(step.metrics[metric], 4) for step in steps if metric in step.metrics]


WHOLE = tg.FullParameters()
"""What is trained if a policy starts with random play: an adapter leaves nano's output head unchanged."""


def warmed_up(client: tg.Client, game: str, *, games: int = 400, **kwargs: Any) -> tg.Job:
    """Teach nano to make legal moves, each with the same probability, and return that job.

    No shipped model knows the words of every game, and illegal moves alone teach nothing.
    """
    job = client.sft(
        tg.tasks.SequenceTasks(_random_play(game, games, **kwargs)),
        epochs=8,
        learning_rate=2e-3,
        adapter=WHOLE,
    )
    job.wait()
    return job


def _random_play(game: str, games: int, **kwargs: Any) -> list[dict[str, Any]]:
    """Return one conversation per seat of games whose players move randomly."""
    table = tg.make_game(game, **kwargs)
    rows: list[dict[str, Any]] = []
    for seed in range(games):
        rng = np.random.default_rng(seed)
        talks: dict[str, list[dict[str, str]]] = {}
        table.reset(seed=seed)
        for agent in table.agent_iter():
            observation, _, terminated, truncated, _ = table.last()
            if terminated or truncated:
                table.step(None)
                continue
            move = str(rng.choice(table.unwrapped.legal_actions(agent)))
            talks.setdefault(agent, []).extend(
                [{"role": "user", "content": observation["text"]}, {"role": "assistant", "content": move}]
            )
            table.step(move)
        rows += [{"messages": talk} for talk in talks.values()]
    return rows
