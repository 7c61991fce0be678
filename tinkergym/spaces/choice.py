"""Choose one of several listed values of a space, for `sample(mask=[...])`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium import spaces

from tinkergym.user_code.quoting import quoted


def choose(space: spaces.Space[Any], values: Any, weights: Sequence[float] | None = None) -> Any:
    """Return one of the values, drawn with the space's own generator.

    Args:
        space: Every value must be in it.
        values: A list of values.
        weights: Their relative probabilities. Without them all are equally likely.

    Raises:
        ValueError: There are none, one is not in the space, or the weights are invalid.
    """
    if not isinstance(values, list | tuple) or not values:
        raise ValueError(f"{space} samples from a list of at least one value, not {quoted(values)!a}")
    for value in values:
        if value not in space:
            raise ValueError(f"{quoted(value)!a} is listed but not in {space}")
    if weights is None:
        return values[int(space.np_random.integers(len(values)))]
    total = float(sum(weights))
    if not (0 < total < float("inf")) or min(weights) < 0:
        raise ValueError("weights must be finite, none negative and at least one positive")
    return values[int(space.np_random.choice(len(values), p=[float(w) / total for w in weights]))]
