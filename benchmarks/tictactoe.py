"""Tic-tac-toe against a random opponent: the score, the parity of logprobs, the share of other work."""

from __future__ import annotations

import tinkergym as tg
from benchmarks.common import Figure, write_result
from benchmarks.learning import Course, run, verdict

COURSE = Course(
    name="tictactoe",
    environment="board/TicTacToeVs-v0",
    steps=190,
    settings={
        "algorithm": tg.GRPO(
            group_size=8,
            groups_per_step=32,
            minibatches=2,
            learning_rate=5e-3,
            lr_schedule="linear",
            # High enough that siblings keep playing differently. The score is that of the most likely
            # moves, which it does not lower.
            entropy_coefficient=0.05,
            # A win counts more the sooner it comes, so a missed win shows even if the random opponent allows
            # it later.
            credit="turn",
            discount=0.6,
        ),
        "adapter": tg.LoRA(rank=8),
    },
    minutes=5,
)


def measure() -> list[Figure]:
    """Train once; the control experiment trains as long on shuffled returns."""
    details, before, after = run(COURSE)
    text, apart = verdict(COURSE, details, before, after)
    parity, outside = details["parity_max"], details["outside_share_mean"]
    figures = [
        Figure(
            what="tic-tac-toe against random, 200 held-out seeds",
            asked="<= 0.10 -> >= 0.70, intervals apart, <= 5 min",
            measured=text,
            reached=apart and before.mean <= 0.1 and after.mean >= 0.7,
        ),
        Figure(
            what="learner against engine logprobs, steps 11 and on",
            asked="max abs difference <= 1e-5",
            measured=f"{parity:.1e}",
            reached=parity <= 1e-5,
        ),
        Figure(
            what="share of a step outside sampling and learning",
            asked="<= 10 %",
            measured=f"{100 * outside:.1f} %",
            reached=outside <= 0.1,
        ),
    ]
    return write_result("tictactoe", figures, details)
