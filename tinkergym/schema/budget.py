"""Budgets: how much a job may use before it pauses."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tinkergym.schema.model import Choice
from tinkergym.schema.refusals import Refusal

_SECONDS_PER_HOUR = 3600.0


class Budget(Choice):
    """The most that a job may use. When a limit is reached, the job saves a checkpoint and pauses.

    Raise the budget and resume the job to continue. Hours count while the job has a place. Tokens are the
    sampled tokens, for training and evaluations, plus the trained tokens; a step that is repeated after a
    kill counts once.

    Example:
        >>> job = client.train("board/TicTacToeVs-v0", steps=500, budget=tg.Budget(hours=2))
        >>> job.update(budget=tg.Budget(hours=4))
        >>> job.resume()
    """

    hours: float | None = Field(None, gt=0, le=1e6)
    """Time with a place, including waiting for a client. Time in the queue or paused does not count."""
    tokens: int | None = Field(None, ge=1)
    """Sampled and trained tokens together. Checked after each step, so the last step may exceed it."""

    @model_validator(mode="after")
    def _it_bounds_something(self) -> Self:
        if self.hours is None and self.tokens is None:
            hint = "give hours, tokens or both; leave out budget for no limit"
            raise Refusal("", "bounds nothing", hint, "bounds_nothing").in_validator()
        return self

    def used_up(self, seconds: float, tokens: int) -> str:
        """Say which limit has been reached; empty if none."""
        if self.hours is not None and seconds >= self.hours * _SECONDS_PER_HOUR:
            return f"{seconds / _SECONDS_PER_HOUR:.3g} of {self.hours:g} hours are used"
        if self.tokens is not None and tokens >= self.tokens:
            return f"{tokens:,} of {self.tokens:,} tokens are used"
        return ""
