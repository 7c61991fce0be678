"""Advantages: how much better an episode went than those it is compared with.

Pure functions over returns. Episodes that failed have no return and enter no baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tinkergym.errors import InvalidRequestError

STD_EPSILON = 1e-6
"""Added to the standard deviation, in units of return."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantages:
    """One entry per episode, in input order, and what could not be learned from."""

    values: npt.NDArray[np.float64]
    """[N], 0 where `included` is False."""
    included: npt.NDArray[np.bool_]
    """[N], whether the episode completed and had another to be compared with; train on these only."""
    zero_variance_groups: int
    """Groups whose episodes all got the return they are compared with: their advantages are exactly 0."""
    broken_groups: int
    """Groups that failures left with too few completed episodes to compare; none of them is included."""
    failed_episodes: int


def group_advantages(
    returns: Sequence[float],
    groups: Sequence[int],
    completed: Sequence[bool],
    *,
    baseline: Literal["group", "batch"] = "group",
    normalize: Literal["std", "none"] = "none",
    shuffle: np.random.Generator | None = None,
) -> Advantages:
    """Compare each completed episode's return with the mean of its group, or of the batch.

    Args:
        returns: [N], undiscounted; what stands at failed episodes is ignored.
        groups: [N], which episodes are compared: any numbers, equal within a group.
        completed: [N], False for failed episodes.
        baseline: `group` compares within groups (GRPO); `batch` with all completed episodes.
        normalize: `std` divides by the sample standard deviation (N - 1) of the same episodes as the
            baseline, plus 1e-6; `none` does not, as that weighs tasks that are nearly always or never solved
            more.
        shuffle: A control experiment: first permute the completed episodes' returns, so that they say
            nothing.

    Raises:
        InvalidRequestError: A completed episode's return is not finite, or the lengths differ.

    Source:
        GRPO, arXiv:2402.03300; without the division, Dr. GRPO, arXiv:2503.20783; the batch as baseline, as
        REINFORCE++, arXiv:2501.03262.
    """
    if not len(returns) == len(groups) == len(completed):
        raise InvalidRequestError("returns, groups and completed must have one length", field="returns")
    earned = np.asarray(returns, dtype=np.float64).copy()
    group_ids = np.asarray(groups)
    done = np.asarray(completed, dtype=bool)
    if not np.isfinite(earned[done]).all():
        raise InvalidRequestError(
            "a completed episode's return is not finite", hint="mark the episode as failed", field="returns"
        )
    if shuffle is not None:
        earned[done] = shuffle.permutation(earned[done])

    values = np.zeros(len(earned))
    included = np.zeros(len(earned), dtype=bool)
    broken = 0
    for peers in _peers(group_ids, done, baseline):
        members = peers[done[peers]]
        if len(members) < 2:  # one number is its own mean: nothing to learn, and nothing to call a baseline
            broken += 1
            continue
        included[members] = True
        values[members] = _compared(earned[members], normalize)
    silent = sum(
        bool(included[group_ids == group].any()) and not values[group_ids == group].any()
        for group in np.unique(group_ids)
    )
    return Advantages(
        values=values,
        included=included,
        zero_variance_groups=silent,
        broken_groups=broken,
        failed_episodes=int((~done).sum()),
    )


def _peers(
    groups: npt.NDArray[np.int64], done: npt.NDArray[np.bool_], baseline: Literal["group", "batch"]
) -> list[npt.NDArray[np.int64]]:
    """Return the indices of the episodes that are compared with one another."""
    if baseline == "batch":
        return [np.arange(len(done))] if len(done) else []
    return [np.flatnonzero(groups == group) for group in np.unique(groups)]


def _compared(returns: npt.NDArray[np.float64], normalize: Literal["std", "none"]) -> npt.NDArray[np.float64]:
    # Equal returns must give exactly 0, and the mean of equal floats is not always that float.
    if returns.min() == returns.max():
        return np.zeros(len(returns))
    centred: npt.NDArray[np.float64] = returns - returns.mean()
    return centred / (returns.std(ddof=1) + STD_EPSILON) if normalize == "std" else centred
