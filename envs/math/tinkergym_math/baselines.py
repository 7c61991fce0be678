"""Scores of simple policies: `python -m tinkergym_math.baselines` prints the README's table."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from tinkergym_math.arithmetic import ArithmeticEnv

Policy = Callable[[str, np.random.Generator], str]
"""Maps a question to an answer."""


def random_number(question: str, rng: np.random.Generator) -> str:
    """Answer with any number that answers some question."""
    return str(rng.integers(199))


def without_carry(question: str, rng: np.random.Generator) -> str:
    """Add or subtract digit by digit without carrying or borrowing: right without understanding more."""
    left, operator, right = _parts(question)
    sign = 1 if operator == "+" else -1
    tens, ones = (left // 10 + sign * (right // 10)) % 10, (left % 10 + sign * (right % 10)) % 10
    return str(10 * tens + ones)


def perfect(question: str, rng: np.random.Generator) -> str:
    """Calculate."""
    left, operator, right = _parts(question)
    return str(left + right if operator == "+" else left - right)


POLICIES: dict[str, Policy] = {"random": random_number, "without carry": without_carry, "perfect": perfect}


def accuracy(policy: Policy, split: str) -> float:
    """Return the mean return over all questions of a split."""
    env = ArithmeticEnv(split)
    rng = np.random.default_rng(0)
    total = 0.0
    for index in range(len(env.tasks)):
        question, _ = env.reset(seed=0, options={"task_index": index})
        total += float(env.step(policy(question, rng))[1])
    return total / len(env.tasks)


def main() -> None:
    """Print each policy's accuracy on both splits."""
    print("| policy | train | test |\n|---|---|---|")
    for name, policy in POLICIES.items():
        print(
            f"| {name} | "
            + " | ".join(f"{accuracy(policy, split):.3f}" for split in ("train", "test"))
            + " |"
        )


def _parts(question: str) -> tuple[int, str, int]:
    found = re.fullmatch(r"(\d+)([+-])(\d+)=", question)
    assert found, question
    return int(found[1]), found[2], int(found[3])


if __name__ == "__main__":
    main()
