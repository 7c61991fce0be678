"""Staleness: how many versions lie between the policy that sampled a token and the one that trains on it.

Step n trains version n - 1 and makes version n, so a token of version v is n - 1 - v versions stale. Pure.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from backend.episodes.played import Played, trained_seats
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.trajectory.trajectory import StopReason, Trajectory

IntArray = npt.NDArray[np.int64]


def oldest_version(step: int, max_staleness: int) -> int:
    """Return the oldest version whose tokens a step may train on."""
    return max(0, step - 1 - max_staleness)


def within_bound(spec: PlayedSpec, step: int, played: Played) -> Played:
    """Return the step's episodes; seats with a token beyond `max_staleness` become `too_stale`.

    No such episode should get here: none is issued before a version within the bound exists, and none is
    accepted with another. But a guaranteed bound is checked where it matters.
    """
    oldest = oldest_version(step, spec.versions_ahead)

    def outdated(trajectory: Trajectory) -> Trajectory:
        first = min((turn.policy_version for turn in trajectory.turns), default=oldest)
        if first >= oldest:
            return trajectory
        return trajectory.model_copy(
            update={
                "stop_reason": StopReason.TOO_STALE,
                "terminated": False,
                "truncated": False,
                "error": f"version {first} sampled a part of it, but step {step} with "
                f"max_staleness={spec.versions_ahead} allows none before version {oldest}",
            }
        )

    return [
        (
            request,
            result.model_copy(
                update={
                    "trajectories": [
                        outdated(one) if request.seats[one.agent].trained else one
                        for one in result.trajectories
                    ]
                }
            ),
        )
        for request, result in played
    ]


def staleness_metrics(step: int, played: Played) -> dict[str, float]:
    """Count the sampled tokens of a step's episodes by staleness, and the episodes dropped for it."""
    trajectories = [seat.trajectory for seat in trained_seats(played)]
    too_stale = [
        result
        for _, result in played
        if any(one.stop_reason is StopReason.TOO_STALE for one in result.trajectories)
    ]
    tokens: Counter[int] = Counter()
    for trajectory in trajectories:
        if trajectory.stop_reason is not StopReason.TOO_STALE:
            for turn in trajectory.turns:
                tokens[step - 1 - turn.policy_version] += turn.end - turn.start
    total = sum(tokens.values())
    metrics = {f"staleness_{age}_tokens": float(count) for age, count in sorted(tokens.items())}
    if total:
        metrics["staleness_mean"] = sum(age * count for age, count in tokens.items()) / total
        metrics["staleness_max"] = float(max(tokens))
    return {**metrics, "too_stale_episodes": float(len(too_stale))}


def versions_of(trajectory: Trajectory, number: int, tokens: npt.NDArray[np.bool_]) -> IntArray:
    """Return which version sampled each of some tokens of a segment.

    Args:
        trajectory: The trajectory of an episode.
        number: The segment's number.
        tokens: [T], indices of its tokens; all of them were sampled.

    Returns:
        [T]
    """
    # -1 stays at tokens outside of turns, none of which is asked for.
    versions = np.full(len(tokens), -1, dtype=np.int64)
    for turn in trajectory.turns:
        if turn.segment == number:
            versions[turn.start : turn.end] = turn.policy_version
    return versions[tokens]
