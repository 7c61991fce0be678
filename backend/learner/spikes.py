"""Spikes: metrics that suddenly leave their usual range, reported while there is time to react.

A spike changes nothing: gradients are clipped and checked in any case.
"""

from __future__ import annotations

from collections import deque
from statistics import median

_REMEMBERED = 32
_FEWEST = 8
"""No spikes are reported before this many values."""
_FACTOR = 10.0

LEAST_LOSS = 0.01
"""Losses below this count as having this size.

Advantages are mostly of size 1 and cancel in the mean, as do the ratios that weight them: what is left is the
rounding of the logprobs, about a hundredth in bfloat16 and 1e-8 in float32. A likelihood so small is learned.
"""


class SpikeWatch:
    """Keeps the last values of one metric. Starts over when a job is resumed."""

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=_REMEMBERED)

    def observe(self, value: float, *, name: str, least: float = 0.0) -> dict[str, float]:
        """Add a value, and return `{name: times the usual size}` if it is a spike, else nothing.

        A spike is ten times as large as usual and ten times as far from the median as usual. Both, because
        the loss of a policy gradient varies around 0, and nearly constant values would otherwise spike at
        every small change.

        Args:
            value: The value, as reported.
            name: Name of the spike's metric.
            least: The smallest usual size: that of rounding errors.
        """
        seen = list(self._seen)
        self._seen.append(value)
        if len(seen) < _FEWEST:
            return {}
        middle = median(seen)
        usual_size = median(abs(other) for other in seen)
        usual_distance = median(abs(other - middle) for other in seen)
        # A policy that mostly had nothing to learn from has no usual size.
        if usual_size == 0:
            return {}
        usual_size = max(usual_size, least)
        large = abs(value) > _FACTOR * usual_size and abs(value - middle) > _FACTOR * usual_distance
        return {name: abs(value) / usual_size} if large else {}
