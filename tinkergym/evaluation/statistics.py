"""Statistics of repeated episodes: intervals of means and fractions, pass@k and pass^k.

Pure functions of numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tinkergym.evaluation.students_t import quantile

Z95 = 1.959964
ENDS = ((0.0, 1.0), (-1.0, 1.0))
"""Returns within the first, or else the second, are taken to have these bounds."""
_UNSEEN_TASKS = 2
"""Weight, in tasks, of the spread that passed and failed tasks have, next to that of partial scores.

Chosen by simulation (`benchmarks/coverage.py`): without it, few tasks of low scores look too certain."""
ROUNDING = 1e-9
"""Smaller differences, relative to the largest value or 1, are rounding, as between 0.1 + 0.2 and 0.3."""

Interval = tuple[float, float]
UNKNOWN: Interval = (-math.inf, math.inf)


def mean_interval(values: Sequence[float], *, bounds: Interval | None = None) -> Interval:
    """Return the 95 % confidence interval of a mean; see `clustered_interval`."""
    return clustered_interval([[value] for value in values], bounds=bounds)


def clustered_interval(clusters: Sequence[Sequence[float]], *, bounds: Interval | None = None) -> Interval:
    """Return the 95 % confidence interval of a mean of clustered values.

    Episodes of one task are correlated, so they carry less information than episodes of different tasks.
    The variance is the cluster-robust one (CR1). Three cases:

    - Bounded values that reach a bound, such as passed and failed tasks: Wilson's score interval with as many
      tasks as would give the variance. It stays within the bounds, holds where successes are rare, and has a
      width also if all values are equal.
    - Other values: Student's t with one degree of freedom fewer than clusters.
    - Other values that are all equal: unknown, since their spread was not seen.

    Args:
        clusters: The values, one list per task; empty lists do not count.
        bounds: The lowest and highest possible value. None: values within [0, 1] or [-1, 1] that reach an end
            are bounded by these, and values of only two kinds, from three tasks on, by the two.

    Returns:
        Low and high; infinite for a single cluster.

    Source:
        Effective sample size: Korn & Graubard, Survey Methodology 24 (1998); with Wilson's interval, Dean &
        Pagano, Journal of Survey Statistics and Methodology 3 (2015).
    """
    clusters = [cluster for cluster in clusters if cluster]
    values = [value for cluster in clusters for value in cluster]
    mean = math.fsum(values) / len(values)
    tasks = len(clusters)
    if tasks < 2:
        return UNKNOWN
    deviations = [math.fsum(value - mean for value in cluster) for cluster in clusters]
    variance = tasks / (tasks - 1) * math.fsum(one**2 for one in deviations) / len(values) ** 2
    bounds = bounds or _bounds(values, tasks)
    if bounds is not None:
        return _score_interval(values, mean, variance, tasks, bounds)
    if max(map(abs, deviations)) <= ROUNDING * max(1.0, *map(abs, values)):
        return UNKNOWN
    half = quantile(tasks - 1) * math.sqrt(variance)
    return mean - half, mean + half


def within(values: Sequence[float], bounds: Interval) -> bool:
    """Whether all values are within bounds, up to rounding."""
    return bounds[0] - ROUNDING <= min(values) and max(values) <= bounds[1] + ROUNDING


def game_bounds(returns: Sequence[float]) -> Interval | None:
    """Return [-1, 1] for the returns of a game within these: games that were all won could have been lost."""
    return (-1.0, 1.0) if within(returns, (-1.0, 1.0)) else None


def share_interval(successes: int, count: int) -> Interval:
    """Return Wilson's 95 % confidence interval of a fraction.

    Unlike the normal one it is valid near 0 and 1.
    """
    return _wilson(successes / count, count, Z95)


def finite_ends(low: float, high: float) -> list[float | None]:
    """Return an interval for JSON, in which an open end is null."""
    return [end if math.isfinite(end) else None for end in (low, high)]


def interval_text(low: float, high: float, form: str) -> str:
    """Return an interval as text, its ends in a format such as `.3f`.

    An infinite end is called open, and an interval with two of them unknown.
    """
    if math.isinf(low) and math.isinf(high):
        return "[unknown]"
    return f"[{', '.join(format(end, form) if math.isfinite(end) else 'open' for end in (low, high))}]"


def pass_at_k(samples: int, successes: int, k: int) -> float:
    """Return the unbiased estimate of the probability that at least one of `k` answers succeeds.

    Args:
        samples: Number of answers to one task.
        successes: Number of successes.
        k: At most `samples`.

    Raises:
        ValueError: `0 <= successes <= samples` or `1 <= k <= samples` does not hold.

    Source:
        Chen et al., arXiv:2107.03374: 1 - C(n - c, k) / C(n, k).
    """
    if not (0 <= successes <= samples and 1 <= k <= samples):
        raise ValueError(f"pass@{k} cannot be estimated from {successes} successes of {samples} samples")
    return 1.0 - math.comb(samples - successes, k) / math.comb(samples, k)


def pass_hat_k(samples: int, successes: int, k: int) -> float:
    """Estimate without bias how probably all of `k` episodes of a task succeed: how reliable a policy is.

    Args:
        samples: How many episodes of one task were played.
        successes: How many of them succeeded.
        k: At most `samples`.

    Raises:
        ValueError: `0 <= successes <= samples` or `1 <= k <= samples` does not hold.

    Source:
        tau-bench, arXiv:2406.12045: C(c, k) / C(n, k).
    """
    if not (0 <= successes <= samples and 1 <= k <= samples):
        raise ValueError(f"pass^{k} cannot be estimated from {successes} successes of {samples} samples")
    return math.comb(successes, k) / math.comb(samples, k)


def _bounds(values: Sequence[float], tasks: int) -> Interval | None:
    """Return the bounds of values that reach one; None if none are known."""
    low, high = min(values), max(values)
    for ends in ENDS:
        if within(values, ends):
            reached = low <= ends[0] + ROUNDING or high >= ends[1] - ROUNDING
            return ends if reached else None
    # Two tasks have two kinds of values whatever they are.
    two_kinds = tasks > 2 and low < high and all(value in (low, high) for value in values)
    return (low, high) if two_kinds else None


def _score_interval(
    values: Sequence[float], mean: float, variance: float, tasks: int, bounds: Interval
) -> Interval:
    """Return the interval of a mean of bounded values with the given variance of the mean."""
    low, span = bounds[0], bounds[1] - bounds[0]
    share = min(1.0, max(0.0, (mean - low) / span))
    only_ends = all(min(value - low, bounds[1] - value) <= ROUNDING * span for value in values)
    if only_ends and len(values) == tasks:
        found = _wilson(share, tasks, Z95)
    else:
        # The variance relative to that of tasks that pass or fail: below 1 for partial scores.
        passing = share * (1 - share)
        seen = tasks * variance / span**2 / passing if passing > ROUNDING else 1.0
        unseen = 0 if only_ends else _UNSEEN_TASKS
        spread = (seen * (tasks - 1) + unseen) / (tasks - 1 + unseen)
        if only_ends:  # Episodes of a task teach at most as much as those of different tasks.
            spread = max(spread, tasks / len(values))
        found = _wilson(share, tasks / spread, quantile(tasks - 1 + unseen))
    return low + span * found[0], low + span * found[1]


def _wilson(share: float, count: float, quantile: float) -> Interval:
    z2 = quantile**2 / count
    centre = (share + z2 / 2) / (1 + z2)
    half = math.sqrt(share * (1 - share) * z2 + z2**2 / 4) / (1 + z2)
    # The two ends are exact, also where rounding is not.
    return 0.0 if share == 0 else max(0.0, centre - half), 1.0 if share == 1 else min(1.0, centre + half)
