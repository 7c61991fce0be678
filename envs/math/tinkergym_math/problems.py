"""All sums and differences of numbers up to 99, in classes of equal difficulty. Pure functions."""

from __future__ import annotations

from typing import NamedTuple


class Problem(NamedTuple):
    """An addition or a subtraction whose result is not negative."""

    left: int
    operator: str
    right: int

    @property
    def question(self) -> str:
        """The question in the environment: `47+38=`."""
        return f"{self.left}{self.operator}{self.right}="

    @property
    def answer(self) -> int:
        """The right answer."""
        return self.left + self.right if self.operator == "+" else self.left - self.right

    @property
    def mirrored(self) -> Problem:
        """The same addition with its numbers swapped; a subtraction is its own mirror."""
        return Problem(self.right, "+", self.left) if self.operator == "+" else self

    @property
    def difficulty(self) -> int:
        """How many of the two numbers have two digits: 0, 1 or 2."""
        return (self.left > 9) + (self.right > 9)


def all_problems() -> list[Problem]:
    """Return every problem once: of two mirrored additions, the one whose left number is not smaller."""
    return [Problem(a, operator, b) for operator in "+-" for a in range(100) for b in range(a + 1)]
