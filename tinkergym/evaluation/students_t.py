"""Student's t distribution with a whole number of degrees of freedom, exactly and without scipy."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np


def two_sided_p(t: float, freedom: int) -> float:
    """Return the probability that a value of Student's t is at least as far from 0 as `t`.

    Args:
        t: Any number; infinite gives 0.
        freedom: Degrees of freedom, at least 1.

    Source:
        Abramowitz & Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4: a finite series.
    """
    angle = math.atan2(abs(t), math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    # A term is the one before it times the cosine squared and (n - 1) / n, with n = 2, 4, ... or 3, 5, ...
    n = np.arange(2 + odd, freedom, 2)
    series = 1.0 + float(np.cumprod((n - 1) / n * cosine**2).sum())
    if not odd:
        inside = sine * series
    else:
        inside = 2 / math.pi * (angle + (sine * cosine * series if freedom > 1 else 0.0))
    return min(1.0, max(0.0, 1.0 - inside))


@lru_cache(maxsize=1024)
def quantile(freedom: int) -> float:
    """Return the value that Student's t exceeds with a probability of 2.5 %, to 10 digits."""
    low, high = 1.0, 13.0  # Between the normal distribution's 1.96 and 12.71 for one degree of freedom.
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, freedom) > 0.05 else (low, middle)
    return (low + high) / 2
