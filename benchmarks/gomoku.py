"""Gomoku on 5 x 5, four in a row, against a random opponent: the win rate."""

from __future__ import annotations

import tinkergym as tg
from benchmarks.common import Figure, write_result
from benchmarks.learning import Course, run

COURSE = Course(
    name="gomoku",
    environment="board/GomokuVs-v0",
    steps=100,
    settings={
        "algorithm": tg.GRPO(
            group_size=8,
            groups_per_step=16,
            learning_rate=3e-3,
            lr_schedule="linear",
            entropy_coefficient=0.03,
        ),
        "adapter": tg.LoRA(rank=8),
    },
    minutes=10,
)


def measure() -> list[Figure]:
    """Train once; the figure is the share of games won, with Wilson's interval."""
    details, before, after = run(COURSE)
    (low0, high0), (low1, high1) = before.win_rate_interval, after.win_rate_interval
    seconds = details["training_seconds"]
    figures = [
        Figure(
            what="gomoku 5x5, four in a row, against random, 200 held-out seeds",
            asked="win rate up, intervals apart, <= 10 min",
            measured=(
                f"{before.win_rate:.2f} [{low0:.2f}, {high0:.2f}] -> "
                f"{after.win_rate:.2f} [{low1:.2f}, {high1:.2f}] in {seconds:.0f} s"
            ),
            reached=low1 > high0 and seconds <= 60 * COURSE.minutes,
        )
    ]
    return write_result("gomoku", figures, details)
