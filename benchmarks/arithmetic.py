"""Arithmetic: accuracy on the held-out split, which shares no problem with the training split."""

from __future__ import annotations

import tinkergym as tg
from benchmarks.common import Figure
from benchmarks.learning import Course, measure_course

COURSE = Course(
    name="arithmetic",
    environment="math/Arithmetic-v0",
    steps=150,
    settings={
        "algorithm": tg.GRPO(group_size=8, groups_per_step=32, learning_rate=2e-3),
        "adapter": tg.LoRA(rank=8),
    },
    evaluation_kwargs={"split": "test"},
    episodes=500,
    minutes=5,
)


def measure() -> list[Figure]:
    """Train once on the training split, judge on the test split."""
    return measure_course(COURSE, asked="accuracy up, intervals apart, <= 5 min")
