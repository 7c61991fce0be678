"""Whether the current step has begun to change the policy. Until then the last good version can be saved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tinkergym.errors import NonFiniteLossError


class StepChange:
    """The state of one job.

    At first, and after each `finished`, the policy is that of the last finished step.
    """

    def __init__(self) -> None:
        self._begun = False

    @property
    def begun(self) -> bool:
        """Whether the policy is no longer that of the last finished step, or may not be."""
        return self._begun

    @contextmanager
    def applying(self) -> Iterator[None]:
        """Surrounds each of a step's optimizer steps, and nothing else."""
        before, self._begun = self._begun, True
        try:
            yield
        except NonFiniteLossError:
            # The only error that guarantees unchanged weights and moments.
            self._begun = before
            raise

    def finished(self) -> None:
        """Record that the step is done: the current policy counts as its version."""
        self._begun = False
