"""Budgets: how much a job may use before it pauses."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tinkergym.schema.model import Choice

_SECONDS_PER_HOUR = 3600.0


class Budget(Choice):
    """What a job may use. When it is used up the job pauses, with a checkpoint, until the budget is raised.

    Hours count while the job has a place. Tokens are those that it sampled, for training and for evaluations
    on the way, plus those that it learned from; a step that a killed worker has to repeat counts once.

    Example:
        >>> job = client.train("board/TicTacToeVs-v0", steps=500, budget=tg.Budget(hours=2))
        >>> job.update(budget=tg.Budget(hours=4))
        >>> job.resume()
    """

    hours: float | None = Field(None, gt=0, le=1e6)
    """With a place, waiting for a client included; in the queue and while paused nothing counts."""
    tokens: int | None = Field(None, ge=1)
    """Sampled and trained tokens together. Looked at after each step, so the last step may exceed it."""

    @model_validator(mode="after")
    def _it_bounds_something(self) -> Self:
        if self.hours is None and self.tokens is None:
            self._refuse("give hours, tokens or both; leave budget out for a job without a bound")
        return self

    def used_up(self, seconds: float, tokens: int) -> str:
        """Say which bound has been reached; empty while none is."""
        if self.hours is not None and seconds >= self.hours * _SECONDS_PER_HOUR:
            return f"{seconds / _SECONDS_PER_HOUR:.3g} of {self.hours:g} hours are used"
        if self.tokens is not None and tokens >= self.tokens:
            return f"{tokens:,} of {self.tokens:,} tokens are used"
        return ""
