"""Scores of a policy from several episodes per task: mean return, success rate, pass@k, pass^k."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tinkergym.evaluation.records import EpisodeRecord
from tinkergym.evaluation.statistics import (
    clustered_interval,
    finite_ends,
    mean_interval,
    pass_at_k,
    pass_hat_k,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassAt:
    """pass@k or pass^k over tasks, with its 95 % interval."""

    k: int
    mean: float
    low: float
    high: float
    tasks: int
    """Tasks with at least `k` completed episodes; the others are not used."""


class Scores:
    """The figures of a run. Episodes that a broken environment or sampler ended are excluded."""

    def __init__(self, records: Sequence[EpisodeRecord], *, success: float = 1.0) -> None:
        """Compute scores of the records.

        Args:
            records: Any number of episodes per seed; those of one seed are one task.
            success: The lowest return that counts as success.
        """
        self.records = list(records)
        self.success = success
        self._returns: dict[int, list[float]] = {}
        for record in self.records:
            earned = self._returns.setdefault(record.seed, [])
            if record.trajectory.completed:
                earned.append(record.trajectory.episode_return)

    @property
    def failed(self) -> int:
        """Episodes whose return is invalid."""
        return sum(not record.trajectory.completed for record in self.records)

    @property
    def completed(self) -> int:
        """Episodes included in the figures."""
        return len(self.records) - self.failed

    @property
    def task_means(self) -> dict[int, float]:
        """The mean return of each task, by its seed."""
        return {seed: math.fsum(found) / len(found) for seed, found in self._returns.items() if found}

    @property
    def mean(self) -> float:
        """The mean return over all completed episodes."""
        return math.fsum(value for found in self._returns.values() for value in found) / self.completed

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean return, clustered by task; infinite if it is unknown."""
        return clustered_interval(list(self._returns.values()))

    @property
    def success_rate(self) -> float:
        """The fraction of completed episodes that reach `success`."""
        reached = sum(value >= self.success for found in self._returns.values() for value in found)
        return reached / self.completed

    @property
    def stop_reasons(self) -> dict[str, int]:
        """Number of episodes by stop reason, including failures, most frequent first."""
        return dict(Counter(record.trajectory.stop_reason.value for record in self.records).most_common())

    def pass_at(self, k: int) -> PassAt | None:
        """Return pass@k, the chance that at least one of `k` episodes of a task succeeds.

        None if no task has `k` completed episodes.
        """
        return self._over_tasks(pass_at_k, k)

    def pass_hat(self, k: int) -> PassAt | None:
        """Return pass^k, the chance that all of `k` episodes of a task succeed.

        None if no task has `k` completed episodes.
        """
        return self._over_tasks(pass_hat_k, k)

    def _over_tasks(self, estimate: Callable[[int, int, int], float], k: int) -> PassAt | None:
        estimates = [
            estimate(len(found), sum(value >= self.success for value in found), k)
            for found in self._returns.values()
            if len(found) >= k
        ]
        if not estimates:
            return None
        low, high = mean_interval(estimates, bounds=(0.0, 1.0))
        mean = math.fsum(estimates) / len(estimates)
        return PassAt(k=k, mean=mean, low=max(0.0, low), high=min(1.0, high), tasks=len(estimates))

    def to_json(self, ks: Sequence[int]) -> dict[str, Any]:
        """Return all figures as one JSON object; unknown ones are null."""
        return {
            "episodes": len(self.records),
            "failed": self.failed,
            "tasks": len(self._returns),
            "mean_return": self.mean if self.completed else None,
            "interval_95": finite_ends(*self.interval) if self.completed else None,
            "success_threshold": self.success,
            "success_rate": self.success_rate if self.completed else None,
            "pass_at": {str(k): _pass_json(self.pass_at(k)) for k in ks},
            "pass_hat": {str(k): _pass_json(self.pass_hat(k)) for k in ks},
            "stop_reasons": self.stop_reasons,
        }


def _pass_json(found: PassAt | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"mean": found.mean, "interval_95": [found.low, found.high], "tasks": found.tasks}
