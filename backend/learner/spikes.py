"""Spikes: numbers of training that leave what was usual until then, named while there is time to look.

Knows numbers only. Nothing is changed by a spike: gradients are clipped and checked in any case.
"""

from __future__ import annotations

from collections import deque
from statistics import median

_REMEMBERED = 32
_FEWEST = 8
"""Before so many numbers nothing is usual yet."""
_FACTOR = 10.0

LEAST_LOSS = 0.01
"""Below it a loss has no size of its own, and counts as large as this.

Advantages are mostly of size 1 and cancel in the mean, as do the ratios that weigh them: what is left is the
rounding of the logprobs, about a hundredth in bfloat16 and 1e-8 in float32. A likelihood so small is learned.
"""


class SpikeWatch:
    """Remembers the last numbers of one kind. Begins anew when a job is resumed."""

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=_REMEMBERED)

    def look(self, value: float, *, name: str, least: float = 0.0) -> dict[str, float]:
        """Take a number in, and return `{name: times the usual size}` if it is a spike, else nothing.

        A spike is ten times as large as usual and ten times as far from the middle as usual. Both, because
        the loss of a policy gradient lies about 0 and has no size of its own, and numbers that hardly vary
        would otherwise spike at every small change.

        Args:
            value: The number, as it is reported.
            name: What a spike is called.
            least: The smallest size that can be usual: that of the numbers' rounding.
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
