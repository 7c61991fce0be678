from __future__ import annotations

import pytest

from tinkergym.algorithms import GRPO


def rates(steps: int, **settings: object) -> list[float]:
    algorithm = GRPO(learning_rate=1.0, **settings)
    return [algorithm.optimizer_step(step, steps)["learning_rate"] for step in range(1, steps + 1)]


def test_keeps_constant_rate():
    assert rates(3) == [1.0, 1.0, 1.0]


def test_starts_linear_schedule_fully_and_never_reaches_zero():
    assert rates(4, lr_schedule="linear") == pytest.approx([1.0, 0.75, 0.5, 0.25])


def test_falls_slowly_at_both_ends_of_cosine():
    assert rates(4, lr_schedule="cosine") == pytest.approx([1.0, 0.853553, 0.5, 0.146447], abs=1e-6)


def test_warms_up_in_equal_parts_before_the_schedule_starts():
    assert rates(5, warmup_steps=3) == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert rates(4, warmup_steps=2, lr_schedule="linear") == pytest.approx([1 / 3, 2 / 3, 1.0, 0.5])
