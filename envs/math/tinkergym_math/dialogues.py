"""Conversations in which an assistant's number is sometimes right and otherwise a near miss."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tinkergym.messages import Message, assistant, user
from tinkergym_math.arithmetic import ArithmeticEnv
from tinkergym_math.make_data import SIZES
from tinkergym_math.problems import Problem, all_problems

_SLIPS = (-10, -2, -1, 1, 2, 10)
"""The error of a wrong answer: a lost carry, or a miscount."""


def dialogues(rng: np.random.Generator, count: int, *, accuracy: float = 0.4) -> Iterator[list[Message]]:
    """Yield `count` whole episodes as message lists, as the agent loop shows them to a model.

    Questions have the dataset's mix of difficulties, from all problems except those of the test split and
    their mirrors, so a test after warm-up and training uses unseen problems.

    Args:
        rng: The source of randomness.
        count: Number of episodes.
        accuracy: The share of right answers. Each single near miss must be rarer: otherwise the right answer
            would not be the most likely one, and training could find little.
    """
    held_out = {task["question"] for task in ArithmeticEnv("test").tasks}
    pools: tuple[list[Problem], ...] = ([], [], [])
    for problem in all_problems():
        if problem.question not in held_out and problem.mirrored.question not in held_out:
            pools[problem.difficulty].append(problem)
    shares = np.array(SIZES["train"]) / sum(SIZES["train"])
    for _ in range(count):
        pool = pools[int(rng.choice(len(pools), p=shares))]
        problem = pool[int(rng.integers(len(pool)))]
        if rng.random() < 0.5:
            problem = problem.mirrored
        answer = problem.answer if rng.random() < accuracy else _near_miss(problem.answer, rng)
        yield [user(problem.question), assistant(str(answer))]


def _near_miss(answer: int, rng: np.random.Generator) -> int:
    possible = [answer + slip for slip in _SLIPS if answer + slip >= 0]
    return possible[int(rng.integers(len(possible)))]
