"""What a policy learns through the whole service: score before, score after, and the cost of each step."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import tinkergym as tg
from benchmarks.common import Figure, service, write_result
from tinkergym.schema.events import StepEvent

HELD_OUT_SEED = 2_000_000
"""Evaluation episodes use seeds from here on; training seeds are 63-bit hashes of the job's seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A learning figure: what is trained, for how long, and how it is evaluated."""

    name: str
    environment: str
    steps: int
    settings: dict[str, Any]
    evaluation_kwargs: dict[str, Any] = field(default_factory=dict)
    episodes: int = 200
    temperature: float = 0.0
    """For evaluations: 0 always chooses the most likely token, 1 samples like training."""
    minutes: float


def run(course: Course) -> tuple[dict[str, Any], tg.Evaluation, tg.Evaluation]:
    """Train once in a new service; return details and the evaluations before and after."""
    with service() as running:
        client = tg.Client(running.url, running.api_key)
        client.train(
            course.environment, steps=1, **course.settings
        ).wait()  # the pool is warm, as in steady state
        started = time.perf_counter()
        job = client.train(course.environment, steps=course.steps, **course.settings)
        steps = [event.body for event in job.events() if isinstance(event.body, StepEvent)]
        seconds = time.perf_counter() - started
        job.wait()
        before, after = (
            tg.evaluate(
                job.policy(version=version),
                course.environment,
                episodes=course.episodes,
                seed=HELD_OUT_SEED,
                temperature=course.temperature,
                env_kwargs=course.evaluation_kwargs,
            )
            for version in (0, None)
        )
        client.close()
    steady = steps[len(steps) // 10 :]
    outside = [1 - (s.sampling_seconds + s.learning_seconds) / s.step_seconds for s in steady]
    details = {
        "course": {
            "environment": course.environment,
            "steps": course.steps,
            "settings": repr(course.settings),
            "temperature": course.temperature,
        },
        "training_seconds": seconds,
        "before": before.summary(),
        "after": after.summary(),
        "reward_curve": [round(s.reward_mean, 4) for s in steps if s.reward_mean is not None],
        "step_seconds_median": statistics.median(s.step_seconds for s in steady),
        "sampling_seconds_median": statistics.median(s.sampling_seconds for s in steady),
        "learning_seconds_median": statistics.median(s.learning_seconds for s in steady),
        "outside_share_mean": statistics.fmean(outside),
        "tokens_per_second_median": statistics.median(s.tokens_per_second for s in steady),
        "parity_max": max(s.metrics["parity_max"] for s in steps[10:]) if len(steps) > 10 else None,
    }
    return details, before, after


def verdict(
    course: Course, details: dict[str, Any], before: tg.Evaluation, after: tg.Evaluation
) -> tuple[str, bool]:
    """Describe the result, and whether the score rose with separate intervals within the time."""
    text = (
        f"{before.mean:.2f} [{before.low:.2f}, {before.high:.2f}] -> "
        f"{after.mean:.2f} [{after.low:.2f}, {after.high:.2f}]"
        f" in {details['training_seconds']:.0f} s"
    )
    return text, after.low > before.high and details["training_seconds"] <= 60 * course.minutes


def measure_course(course: Course, asked: str) -> list[Figure]:
    """Run a course whose only condition is that the score rises, with separate intervals, in time."""
    details, before, after = run(course)
    text, reached = verdict(course, details, before, after)
    figures = [
        Figure(
            what=f"{course.name}, {course.episodes} held-out episodes",
            asked=asked,
            measured=text,
            reached=reached,
        )
    ]
    return write_result(course.name, figures, details)
