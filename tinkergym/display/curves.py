"""Downsample curves to the available width."""

from __future__ import annotations

import itertools
from collections.abc import Sequence


def condense(values: Sequence[float], columns: int) -> list[float]:
    """Average neighbours so that at most `columns` values remain."""
    count = min(columns, len(values))
    edges = [index * len(values) // count for index in range(count)] + [len(values)] if count else []
    return [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
