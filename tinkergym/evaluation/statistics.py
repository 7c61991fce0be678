"""Statistics of repeated episodes: intervals, pass@k, pass^k, and the difference of two policies.

Pure functions of numbers.
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
    """Return the 95 % confidence interval of a mean of clustered values.

    Episodes of one task are correlated, so they carry less information than episodes of different tasks.
    The variance is the cluster-robust one (CR1); Student's t has one degree of freedom fewer than clusters.

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
    """Return Wilson's 95 % confidence interval of a fraction.

    Unlike the normal one it is valid near 0 and 1.
    """
    share, z2 = successes / count, _Z95**2
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = _Z95 / (1 + z2 / count) * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    return max(0.0, centre - half), min(1.0, centre + half)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How much more the second of two policies earns than the first on the same tasks."""

    mean: float
    low: float
    """The 95 % interval."""
    high: float
    p: float
    """The probability of a difference this large, of either sign, if the two were equal."""
    tasks: int


def paired_bootstrap(
    pairs: Sequence[tuple[float, float]], *, resamples: int = 10_000, seed: int = 0
) -> Difference:
    """Compare two policies by their mean returns on the same tasks.

    Tasks are resampled with replacement, and the interval is given by percentiles. For `p` the differences
    are shifted to a mean of 0 and resampled, and means at least as large as the observed one are counted.

    Args:
        pairs: The mean return of (first, second), one pair per task.
        resamples: Number of resamples.
        seed: Makes the result repeatable.

    Raises:
        ValueError: There are fewer than two pairs.

    Source:
        Efron & Tibshirani, An Introduction to the Bootstrap, chapters 13 and 16.
    """
    if len(pairs) < 2:
        raise ValueError(f"a comparison needs at least two tasks, not {len(pairs)}")
    differences = np.array([second - first for first, second in pairs], dtype=np.float64)
    rng = np.random.default_rng(seed)
    # One resample at a time is slow, and all at once is too large: 10,000 resamples of 100,000 tasks are 8
    # GB.
    means = np.concatenate(
        [
            rng.choice(differences, size=(size, len(differences))).mean(axis=1)
            for size in _chunks(resamples, most=max(1, 10_000_000 // len(differences)))
        ]
    )
    observed = float(differences.mean())
    low, high = np.quantile(means, [0.025, 0.975])
    # Rounding must not decide whether a resample is as far from 0 as the observation.
    as_far = np.abs(means - observed) >= abs(observed) - 1e-12
    return Difference(
        mean=observed,
        low=float(low),
        high=float(high),
        # The observation counts as one of the resamples, so p is never 0.
        p=float((as_far.sum() + 1) / (resamples + 1)),
        tasks=len(pairs),
    )


def _chunks(total: int, *, most: int) -> list[int]:
    return [min(most, total - start) for start in range(0, total, most)]


def _students_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t.

    Computed from the normal quantile by Abramowitz & Stegun 26.7.5, which is within 0.5 % from 4 degrees of
    freedom on; exact below.
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
