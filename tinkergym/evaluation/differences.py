"""The difference of two policies on the same tasks, with its interval and p value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tinkergym.evaluation.statistics import ENDS, ROUNDING, Z95, within
from tinkergym.evaluation.students_t import quantile, two_sided_p
from tinkergym.schema.events import EvaluationEvent


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
    """Compared tasks; the episodes of the smaller evaluation if they are not paired."""


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


def unpaired_difference(first: EvaluationEvent, second: EvaluationEvent) -> Difference:
    """Compare two means by their 95 % intervals, as if their episodes were drawn independently.

    The same tasks in both make the true interval narrower; `paired_difference` takes that into account.

    Args:
        first: An evaluation with a mean.
        second: Another one; the difference is its mean minus the first one's.

    Source:
        Newcombe, Statistics in Medicine 17 (1998), 873: method 10, here for any two intervals.
    """
    assert first.mean is not None and second.mean is not None
    mean, episodes = second.mean - first.mean, min(first.episodes, second.episodes)
    ends = (first.low, first.high, second.low, second.high)
    if None in ends:
        return Difference(mean=mean, low=-math.inf, high=math.inf, p=math.nan, tasks=episodes)
    first_low, first_high, second_low, second_high = (float(end or 0.0) for end in ends)
    below = math.hypot(second.mean - second_low, first_high - first.mean)
    above = math.hypot(second_high - second.mean, first.mean - first_low)
    towards_zero = below if mean > 0 else above
    p = math.nan if towards_zero == 0 else math.erfc(Z95 * abs(mean) / towards_zero / math.sqrt(2))
    return Difference(mean=mean, low=mean - below, high=mean + above, p=p, tasks=episodes)
