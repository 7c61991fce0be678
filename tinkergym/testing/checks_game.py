"""Checks of a PettingZoo game: PettingZoo's own, with warnings as errors."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator

from tinkergym.testing.checks_subject import Subject

_CYCLES = 200
_WARNS_OF_ALL_TEXT = (
    "Observation is not a NumPy array",
    r"(Observation|Action) space for each agent probably should be gymnasium\.spaces\.box",
    "We recommend agents to be named in the format",
)
"""Warnings that `api_test` gives for every text game, because it expects numbers, and for agents with
descriptive names such as `black`. All others are errors."""


def api(subject: Subject) -> None:
    """PettingZoo's `api_test` passes without a warning."""
    from pettingzoo.test import api_test

    with _strict():
        api_test(subject.make(), num_cycles=_CYCLES)


def seeds(subject: Subject) -> None:
    """PettingZoo's `seed_test` passes without a warning."""
    from pettingzoo.test import seed_test

    with _strict():
        seed_test(subject.make, num_cycles=_CYCLES)


@contextlib.contextmanager
def _strict() -> Iterator[None]:
    # The tests print progress, which is not needed.
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("error")
        for expected in _WARNS_OF_ALL_TEXT:
            warnings.filterwarnings("ignore", message=expected)
        yield
