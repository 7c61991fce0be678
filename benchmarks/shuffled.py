"""The control experiment: tic-tac-toe with returns shuffled within each step must not learn anything."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.common import Figure, write_result
from benchmarks.learning import run, verdict
from benchmarks.tictactoe import COURSE


def measure() -> list[Figure]:
    """Train as long as the real course."""
    course = replace(COURSE, name="shuffled", settings=COURSE.settings | {"shuffle_rewards": True})
    details, before, after = run(course)
    text, _ = verdict(course, details, before, after)
    figures = [
        Figure(
            what="the same with returns shuffled within each step",
            asked="no significant change",
            measured=text,
            reached=before.low <= after.high and after.low <= before.high,
        )
    ]
    return write_result("shuffled", figures, details)
