"""Several environments in one job: their names, and which one a group plays.

Pure functions. The same settings, step and group give the same environment on every machine.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate

import numpy as np
from pydantic import JsonValue

MOST_ENVIRONMENTS = 32
"""The most environments of one job."""

_ENVIRONMENT = 2
"""Last word of the seed entropy of a step's first point; different from those of other draws."""

_MOST_CHARACTERS = 120
"""The longest arguments in a name, in characters."""

_POINTS = 2**32
_GOLDEN = 2654435769
"""`_POINTS` divided by the golden ratio. Its multiples, modulo `_POINTS`, are evenly spread for any count (a
Weyl sequence)."""


def names_of(environments: Sequence[tuple[str, Mapping[str, JsonValue]]]) -> list[str]:
    """Return each environment's name in metrics: its id, plus its arguments if ids repeat.

    Args:
        environments: The id and the arguments of each.
    """
    times = Counter(env_id for env_id, _ in environments)
    return [
        env_id if times[env_id] == 1 or not kwargs else f"{env_id}[{_written(kwargs)}]"
        for env_id, kwargs in environments
    ]


def _written(kwargs: Mapping[str, JsonValue]) -> str:
    # Names are shown to everyone who sees the job, so a server's token and a judge's key are left out.
    written = ",".join(f"{name}={_value(value)}" for name, value in sorted(kwargs.items()) if name != "token")
    if len(written) <= _MOST_CHARACTERS:
        return written
    # Every metric of every step contains the name.
    return f"{written[:_MOST_CHARACTERS]}#{hashlib.sha256(written.encode()).hexdigest()[:8]}"


def _value(value: JsonValue) -> str:
    if isinstance(value, Mapping):
        value = {name: one for name, one in value.items() if name != "api_key"}
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def drawn(weights: Sequence[float], *, seed: int, step: int, group: int) -> int:
    """Return the index of the environment that a group plays.

    The groups of a step take evenly spread points in [0, 1), from a starting point that the seed draws for
    each step. So each environment gets its share of every step to within about one group, and over many steps
    exactly its weight.
    """
    begin = int(np.random.SeedSequence([seed, step, 0, 0, _ENVIRONMENT]).generate_state(1)[0])
    point = Fraction((begin + group * _GOLDEN) % _POINTS, _POINTS)
    # Integers are exact: a sum of floats could end below 1, and a point lie beyond the last.
    edges = list(accumulate(Fraction(weight) for weight in weights))
    return bisect_right(edges, point * edges[-1])
