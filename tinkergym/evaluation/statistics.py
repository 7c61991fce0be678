"""What repeated episodes say, in numbers: intervals, pass@k, and the difference of two policies.

Pure functions of lists of numbers; knows nothing of environments or policies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_Z95 = 1.959964


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of a mean by Student's t; infinite for a single value."""
    return clustered_interval([[value] for value in values])


def clustered_interval(clusters: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean of values that come in clusters.

    Answers to one task resemble each other, so they say less than as many answers to different tasks.
    The variance is the cluster-robust one (CR1); Student's t has one degree of freedom less than clusters.

    Args:
        clusters: The values, one list per task; empty lists do not count.

    Returns:
        Low and high; infinite for a single cluster.
    """
    clusters = [cluster for cluster in clusters if cluster]
    count = sum(map(len, clusters))
    mean = math.fsum(value for cluster in clusters for value in cluster) / count
    if len(clusters) < 2:
        return -math.inf, math.inf
    freedom = len(clusters) - 1
    deviations = [math.fsum(value - mean for value in cluster) for cluster in clusters]
    variance = len(clusters) / freedom * math.fsum(value**2 for value in deviations) / count**2
    half = _students_quantile(freedom) * math.sqrt(variance)
    return mean - half, mean + half


def share_interval(successes: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % confidence interval of a share; unlike the normal one it is sound near 0 and 1."""
    share, z2 = successes / count, _Z95**2
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z95 / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def pass_at_k(samples: int, successes: int, k: int) -> float:
    """Estimate without bias how probably at least one of `k` answers succeeds.

    Args:
        samples: How many answers one task was given.
        successes: How many of them succeeded.
        k: At most `samples`.

    Raises:
        ValueError: `0 <= successes <= samples` or `1 <= k <= samples` does not hold.

    Source:
        Chen et al., arXiv:2107.03374: 1 - C(n - c, k) / C(n, k).
    """
    if not (0 <= successes <= samples and 1 <= k <= samples):
        raise ValueError(f"pass@{k} cannot be told from {successes} successes of {samples} samples")
    return 1.0 - math.comb(samples - successes, k) / math.comb(samples, k)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How much more the second of two policies earns than the first, on the same tasks."""

    mean: float
    low: float
    """Of the 95 % interval."""
    high: float
    p: float
    """How probable so large a difference, of either sign, would be if there were none."""
    tasks: int


def paired_bootstrap(
    pairs: Sequence[tuple[float, float]], *, resamples: int = 10_000, seed: int = 0
) -> Difference:
    """Compare two policies by their mean returns on the same tasks.

    Tasks are drawn anew with replacement; the interval is that of the percentiles. For `p` the differences
    are drawn shifted to a mean of 0, and those at least as far away as what was seen are counted.

    Args:
        pairs: The mean return of (first, second), one pair per task.
        resamples: How often to draw.
        seed: Makes the result repeatable.

    Raises:
        ValueError: There are fewer than two pairs.

    Source:
        Efron & Tibshirani, An Introduction to the Bootstrap, chapters 13 and 16.
    """
    if len(pairs) < 2:
        raise ValueError(f"two tasks are the least that can be compared, not {len(pairs)}")
    differences = np.array([second - first for first, second in pairs], dtype=np.float64)
    rng = np.random.default_rng(seed)
    # One resample at a time would be slow and all at once large: 10,000 draws of 100,000 tasks are 8 GB.
    means = np.concatenate(
        [
            rng.choice(differences, size=(size, len(differences))).mean(axis=1)
            for size in _chunks(resamples, most=max(1, 10_000_000 // len(differences)))
        ]
    )
    observed = float(differences.mean())
    low, high = np.quantile(means, [0.025, 0.975])
    # Rounding must not decide whether a resample is as far away as the observation itself.
    as_far = np.abs(means - observed) >= abs(observed) - 1e-12
    return Difference(
        mean=observed,
        low=float(low),
        high=float(high),
        # The observation counts as one of the draws, so that p is never 0.
        p=float((as_far.sum() + 1) / (resamples + 1)),
        tasks=len(pairs),
    )


def _chunks(total: int, *, most: int) -> list[int]:
    return [min(most, total - start) for start in range(0, total, most)]


def _students_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t.

    From the normal's by Abramowitz & Stegun 26.7.5, which is within 0.5 % from 4 degrees on; exact below.
    """
    if freedom <= 3:
        return (12.7062, 4.3027, 3.1824)[freedom - 1]
    z = _Z95
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )
