"""Arithmetic: accuracy on the test split, which shares no problem with the training split.

At temperature 1: nano's most likely answer is right more often than its sampled one even before training.
"""

from __future__ import annotations

import tinkergym as tg
from benchmarks.common import Figure
from benchmarks.learning import Course, measure_course

COURSE = Course(
    name="arithmetic",
    environment="math/Arithmetic-v0",
    steps=400,
    settings={
        "algorithm": tg.GRPO(group_size=16, groups_per_step=16, learning_rate=3e-3, lr_schedule="linear"),
        "sampling": tg.Sampling(max_turn_tokens=8),
        "adapter": tg.LoRA(rank=8),
    },
    evaluation_kwargs={"split": "test"},
    episodes=500,
    temperature=1.0,
    minutes=5,
)


def measure() -> list[Figure]:
    """Train once on the training split, evaluate on the test split."""
    return measure_course(COURSE, asked="accuracy up, intervals apart, <= 5 min")
