"""How a kind of job learns from a step's episodes: what `PlayedJob` leaves open."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from backend.episodes.played import Played
from backend.jobs.completions import waste_warnings
from backend.jobs.job_context import JobContext
from backend.jobs.learn_phase import Learned
from tinkergym.schema.events import StepEvent, WarningEvent


class Strategy:
    """Contexts and specs are of the strategy's kind of job."""

    def open(self, context: JobContext[Any]) -> None:
        """Prepare, when the loop begins."""

    def close(self) -> None:
        """Release what `open` took."""

    def replacements(self, spec: Any, played: Played) -> list[int]:
        """Return the numbers of groups to play in place of some; empty if the step is complete."""
        return []

    def kept(self, spec: Any, played: Played) -> Played:
        """Return the episodes of groups that were not replaced."""
        return played

    def learn(self, context: JobContext[Any], step: int, played: Played) -> Learned:
        """Update the policies."""
        raise NotImplementedError

    def remember(self, context: JobContext[Any], agents: Collection[str], played: Played) -> None:
        """Note what later steps need of a step, for the policies of `agents`, which learned from it."""

    def waste(self, spec: Any, event: StepEvent, played: Played) -> list[WarningEvent]:
        """Return warnings about why a step taught little."""
        return waste_warnings(event.step, played, rewards_count=False)
