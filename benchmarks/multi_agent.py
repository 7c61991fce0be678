"""What benchmarks of games with several seats share: versions against fixed players, on fixed seeds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import tinkergym as tg
from tinkergym.evaluation.matches import GameEnd, Match, Player, play_matches
from tinkergym.evaluation.statistics import mean_interval
from tinkergym.schema.events import StepEvent
from tinkergym.schema.job_spec import EnvironmentRef

HELD_OUT_SEED = 3_000_000
"""Games that are measured have seeds from here on; training seeds are 31-bit hashes of the job's seed."""

ALGORITHM = tg.GRPO(
    group_size=8,
    groups_per_step=16,
    learning_rate=5e-3,
    lr_schedule="linear",
    entropy_coefficient=0.05,
    credit="turn",
    discount=0.6,
)
"""As the tic-tac-toe figure against a random opponent."""


def returns_at(
    agent: str, seats: Mapping[str, Player], game: str, seeds: Iterable[int], **kwargs: Any
) -> list[float]:
    """Return what one agent earned in each game that was played to an end."""
    matches = [Match(seats=seats, seed=seed) for seed in seeds]
    results = play_matches(matches, EnvironmentRef(id=game, kwargs=kwargs))
    return [result.returns[agent] for result in results if result.end is not GameEnd.FAILED]


def described(returns: list[float]) -> tuple[float, float, float]:
    """Return the mean with its 95 % interval."""
    low, high = mean_interval(returns)
    return sum(returns) / len(returns), low, high


def followed(job: tg.Job) -> tuple[list[StepEvent], float]:
    """Return a job's steps and the seconds that they took."""
    started = time.perf_counter()
    steps = [event.body for event in job.events() if isinstance(event.body, StepEvent)]
    job.wait()
    return steps, time.perf_counter() - started


def curve(steps: Iterable[StepEvent], metric: str) -> list[float]:
    """Return a metric over the steps."""
    return [round(step.metrics[metric], 4) for step in steps if metric in step.metrics]
