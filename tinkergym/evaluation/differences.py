"""The difference of two policies on the same tasks, with its interval and p value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tinkergym.evaluation.statistics import ENDS, ROUNDING, within
from tinkergym.evaluation.students_t import quantile, two_sided_p


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How much more the second of two policies earns than the first on the same tasks."""

    mean: float
    low: float
    """The 95 % interval; infinite if nothing is known about the spread of the differences."""
    high: float
    p: float
    """The probability of a difference this large, of either sign, if the two were equal. It is below 0.05 if
    and only if the interval does not contain 0. NaN if the interval is unknown."""
    tasks: int


def paired_difference(pairs: Sequence[tuple[float, float]]) -> Difference:
    """Compare two policies by their mean returns on the same tasks, by Student's t of the differences.

    A few tasks that differ, or differ equally, would look too certain. The sum of squares therefore has one
    more term: the square of the smallest difference that is not 0. If all differences are equal it has two,
    and if all are 0 these are of the largest possible difference: 1 for returns within [0, 1], 2 within
    [-1, 1], and otherwise the range of the returns.

    Args:
        pairs: The mean return of (first, second), one pair per task.

    Raises:
        ValueError: There are fewer than two pairs.
    """
    tasks = len(pairs)
    if tasks < 2:
        raise ValueError(f"a comparison needs at least two tasks, not {tasks}")
    returns = [value for pair in pairs for value in pair]
    rounding = ROUNDING * max(1.0, *map(abs, returns))
    bounds = next((bounds for bounds in ENDS if within(returns, bounds)), None)
    most = math.inf if bounds is None else bounds[1] - bounds[0]
    differences = [second - first for first, second in pairs]
    mean = math.fsum(differences) / tasks
    steps = [abs(one) for one in differences if abs(one) > rounding]
    smallest = min(steps, default=max(returns) - min(returns) if bounds is None else most)
    if smallest <= rounding:
        return Difference(mean=mean, low=-math.inf, high=math.inf, p=math.nan, tasks=tasks)
    terms = 2 if max(differences) - min(differences) <= rounding else 1
    squares = math.fsum((one - mean) ** 2 for one in differences) + terms * smallest**2
    error = math.sqrt(squares / (tasks * (tasks - 1)))
    half = quantile(tasks - 1) * error
    return Difference(
        mean=mean,
        low=max(-most, mean - half),
        high=min(most, mean + half),
        p=two_sided_p(mean / error, tasks - 1),
        tasks=tasks,
    )
