"""Base class of all records of an episode."""

from __future__ import annotations

from pydantic import ConfigDict

from tinkergym.trajectory.bounded_numbers import BoundedNumbers


class Record(BoundedNumbers):
    """A frozen record that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")
