"""Whether the step at hand has begun to change the policy. Until then the last good version can be kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tinkergym.errors import NonFiniteGradientError


class StepChange:
    """One job's. At first, and after each `finished`, the policy is that of the last finished step."""

    def __init__(self) -> None:
        self._begun = False

    @property
    def begun(self) -> bool:
        """Whether the policy is no longer that of the last finished step, or may not be."""
        return self._begun

    @contextmanager
    def applying(self) -> Iterator[None]:
        """Surround each of a step's optimiser steps, and nothing else."""
        before, self._begun = self._begun, True
        try:
            yield
        except NonFiniteGradientError:
            # The one refusal that promises to have left weights and moments as they were.
            self._begun = before
            raise

    def finished(self) -> None:
        """Note that the step is done: what the policy is now counts as its version."""
        self._begun = False
