"""Advantages: how much better an episode or turn went than the ones it is compared with.

Pure functions of returns. Failed episodes have no return and do not enter baselines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tinkergym.errors import InvalidRequestError

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

Baseline = Literal["group", "leave_one_out", "batch"]
Normalize = Literal["none", "std", "batch_std"]

STD_EPSILON = 1e-6
"""Added to the standard deviation, in units of return."""
_ROUNDING = 1e-12
"""Relative to the largest return, or 1: smaller differences are rounding, as between 0.1 + 0.2 and 0.3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantages:
    """One entry per episode or turn, in input order, and counts of what could not be learned from."""

    values: FloatArray
    """[N], 0 where `included` is False."""
    included: BoolArray
    """[N], whether the episode completed and had others to be compared with; only train on these."""
    zero_variance_groups: int
    """Groups in which all returns equal the baseline, up to rounding: their advantages are exactly 0."""
    broken_groups: int
    """Groups that failures left with too few completed episodes to compare; all of them are excluded."""
    failed_episodes: int
    lone_turns: int = 0
    """Turns that no other episode of the group reached: their advantages are 0."""


def group_advantages(
    returns: Sequence[float],
    groups: Sequence[int],
    completed: Sequence[bool],
    *,
    baseline: Baseline = "group",
    normalize: Normalize = "none",
    shuffle: np.random.Generator | None = None,
    strata: Sequence[int] | None = None,
) -> Advantages:
    """Compare each completed episode's return with the mean of its group, or of the batch.

    Args:
        returns: [N], undiscounted; values of failed episodes are ignored.
        groups: [N], any numbers that are equal within a group of compared episodes.
        completed: [N], False for failed episodes.
        baseline: `group`: with the mean of its group (GRPO). `leave_one_out`: with the mean of the others in
            its group, which gives n / (n - 1) times as much (RLOO). `batch`: with the mean of all completed
            episodes (REINFORCE++).
        normalize: `std` divides by the sample standard deviation (N - 1) of the same episodes as the
            baseline, plus 1e-6; `none` does not, because that gives more weight to tasks that are nearly
            always or never solved. `batch_std` divides the result by its sample standard deviation over the
            whole batch (its mean there is already 0).
        shuffle: A control experiment: first permute the completed episodes' returns among comparable ones,
            which makes them meaningless.
        strata: [N], equal for comparable returns, such as those of one environment: batch-wide operations
            then apply to each kind separately. None: all are comparable.

    Raises:
        InvalidRequestError: A completed episode's return is not finite, or the lengths differ.

    Source:
        GRPO, arXiv:2402.03300; without the division, Dr. GRPO, arXiv:2503.20783; leave-one-out, RLOO,
        arXiv:2402.14740; over the batch, REINFORCE++, arXiv:2501.03262.
    """
    earned, done = _checked(returns, groups, completed)
    kinds = _kinds(strata, len(earned))
    _permute(earned, done, kinds, shuffle)
    group_ids = np.asarray(groups)
    values = np.zeros(len(earned))
    included = np.zeros(len(earned), dtype=bool)
    broken = 0
    for peers in _peers(group_ids, baseline, kinds):
        members = peers[done[peers]]
        if len(members) < 2:  # a single value is its own mean: there is nothing to learn from
            broken += 1
            continue
        included[members] = True
        values[members] = _compared(earned[members], baseline, normalize)
    if normalize == "batch_std":
        _normalize_batch(values, included, kinds)
    return Advantages(
        values=values,
        included=included,
        zero_variance_groups=_zero_variance_groups(values, included, group_ids),
        broken_groups=broken,
        failed_episodes=int((~done).sum()),
    )


def turn_advantages(
    turn_returns: Sequence[Sequence[float]],
    groups: Sequence[int],
    completed: Sequence[bool],
    *,
    baseline: Baseline = "group",
    normalize: Normalize = "none",
    shuffle: np.random.Generator | None = None,
    strata: Sequence[int] | None = None,
) -> tuple[list[FloatArray], Advantages]:
    """Compare the return from each turn on with the same turn of the group's other episodes.

    A turn is therefore not credited with earlier rewards. The advantages of the first turns are those that
    `group_advantages` gives the episodes. With `baseline="batch"` all turns of the batch are compared.

    Args:
        turn_returns: One list per episode, N of them: the return from each turn on, see `returns_to_go`.
            Empty for an agent that never acted, with which no turn is compared.
        groups: [N].
        completed: [N].
        baseline: As in `group_advantages`, among turns with the same number.
        normalize: As in `group_advantages`; `std` is that of the compared turns.
        shuffle: As in `group_advantages`, permuting all turns.
        strata: As in `group_advantages`.

    Returns:
        turns: N arrays, one advantage per turn; 0 for a turn that no other episode reached.
        episodes: `included` and the counts, [N]; `values` contains the first turns' advantages.

    Raises:
        InvalidRequestError: As in `group_advantages`.

    Source:
        Process supervision in GRPO, arXiv:2402.03300, section 4.1.3, comparing the return from the turn on,
        so that a baseline does not depend on the turn itself.
    """
    done = np.asarray(completed, dtype=bool)
    lengths = np.asarray([len(turns) for turns in turn_returns], dtype=np.int64)
    flat = [value for turns in turn_returns for value in turns]
    episode_of = np.repeat(np.arange(len(lengths)), lengths)  # [turns]
    earned, turn_done = _checked(flat, episode_of.tolist(), done[episode_of].tolist())
    kinds = _kinds(strata, len(done))
    _permute(earned, turn_done, kinds[episode_of], shuffle)
    turn_number = np.concatenate([np.zeros(0, dtype=np.int64), *(np.arange(length) for length in lengths)])
    group_ids = np.asarray(groups)

    values, compared = np.zeros(len(earned)), np.zeros(len(earned), dtype=bool)
    included, broken, lone = np.zeros(len(done), dtype=bool), 0, 0
    for peers in _peers(group_ids, baseline, kinds):
        if done[peers].sum() < 2:
            broken += 1
            continue
        included[peers] = done[peers]
        here = turn_done & np.isin(episode_of, peers)  # [turns]
        numbers = [None] if baseline == "batch" else np.unique(turn_number[here])
        for number in numbers:
            members = np.flatnonzero(here if number is None else here & (turn_number == number))
            if len(members) < 2:
                lone += 1
                continue
            compared[members] = True
            values[members] = _compared(earned[members], baseline, normalize)
    if normalize == "batch_std":
        _normalize_batch(values, compared, kinds[episode_of])
    turns = np.split(values, np.cumsum(lengths)[:-1]) if len(lengths) else []
    episodes = Advantages(
        values=np.asarray([part[0] if len(part) else 0.0 for part in turns]),
        included=included,
        zero_variance_groups=_zero_variance_groups(
            np.asarray([float(np.abs(part).max(initial=0.0)) for part in turns]), included, group_ids
        ),
        broken_groups=broken,
        failed_episodes=int((~done).sum()),
        lone_turns=lone,
    )
    return turns, episodes


def _checked(
    returns: Sequence[float],
    groups: Sequence[int],
    completed: Sequence[bool],
) -> tuple[FloatArray, BoolArray]:
    if not len(returns) == len(groups) == len(completed):
        raise InvalidRequestError("returns, groups and completed must have the same length", field="returns")
    earned = np.asarray(returns, dtype=np.float64).copy()
    done = np.asarray(completed, dtype=bool)
    if not np.isfinite(earned[done]).all():
        raise InvalidRequestError(
            "a completed episode's return is not finite", hint="mark the episode as failed", field="returns"
        )
    return earned, done


def _permute(
    earned: FloatArray,
    done: BoolArray,
    kinds: npt.NDArray[np.int64],
    shuffle: np.random.Generator | None,
) -> None:
    """Permute the completed values of each kind in place, for the control experiment.

    Across kinds, a seat could earn what only another one can, and learn that its games went well or badly.
    """
    if shuffle is None:
        return
    for kind in np.unique(kinds):
        members = np.flatnonzero(done & (kinds == kind))
        earned[members] = shuffle.permutation(earned[members])


def _kinds(strata: Sequence[int] | None, episodes: int) -> npt.NDArray[np.int64]:
    if strata is not None and len(strata) != episodes:
        raise InvalidRequestError("strata must have one entry per episode", field="strata")
    return np.zeros(episodes, dtype=np.int64) if strata is None else np.asarray(strata, dtype=np.int64)


def _peers(
    groups: npt.NDArray[np.int64], baseline: Baseline, kinds: npt.NDArray[np.int64]
) -> list[npt.NDArray[np.int64]]:
    """Return the indices of the episodes that are compared with each other."""
    if baseline == "batch":
        return [np.flatnonzero(kinds == kind) for kind in np.unique(kinds)]
    return [np.flatnonzero(groups == group) for group in np.unique(groups)]


def _compared(returns: FloatArray, baseline: Baseline, normalize: Normalize) -> FloatArray:
    centred: FloatArray = returns - returns.mean()
    # Equal returns must give exactly 0: neither sums of rewards nor the mean of equal floats are exact.
    centred[np.abs(centred) <= _ROUNDING * max(1.0, float(np.abs(returns).max()))] = 0.0
    if baseline == "leave_one_out":
        centred *= len(returns) / (len(returns) - 1)
    return centred / (returns.std(ddof=1) + STD_EPSILON) if normalize == "std" else centred


def _normalize_batch(values: FloatArray, included: BoolArray, kinds: npt.NDArray[np.int64]) -> None:
    """Scale the included values, whose mean is 0, to deviation 1 in place; exact zeros stay 0."""
    for kind in np.unique(kinds):
        members = included & (kinds == kind)
        if members.sum() > 1:
            values[members] /= values[members].std(ddof=1) + STD_EPSILON


def _zero_variance_groups(values: FloatArray, included: BoolArray, groups: npt.NDArray[np.int64]) -> int:
    return sum(
        bool(included[groups == group].any()) and not values[groups == group].any()
        for group in np.unique(groups)
    )


def returns_to_go(rewards: Sequence[float], *, discount: float) -> list[float]:
    """Return for each turn the return from it on: `R_k = r_k + discount * R_(k+1)`.

    Source:
        Sutton and Barto, "Reinforcement Learning", 2nd edition, equation 3.9.
    """
    earned, found = 0.0, []
    for reward in reversed(rewards):
        earned = reward + discount * earned
        found.append(earned)
    return found[::-1]


def distillation_advantages(
    sampling_logprobs: npt.NDArray[np.floating], teacher_logprobs: npt.NDArray[np.floating]
) -> FloatArray:
    """Return the teacher's logprob minus the student's for each token that the student sampled.

    Its mean is an unbiased estimate of minus the reverse KL divergence per token, KL(student || teacher), on
    the states that the student visits. Used as the advantage of an importance-weighted policy gradient, it
    teaches the student to sample what the teacher finds likely, token by token; later tokens are not credited
    to earlier ones (a discount of 0).

    Args:
        sampling_logprobs: [P], the sampling student's logprobs, in nats.
        teacher_logprobs: [P], for the same tokens in the same contexts, at the same temperature.

    Returns:
        [P] float64.

    Source:
        On-policy distillation, GKD, arXiv:2306.13649, and MiniLLM, arXiv:2306.08543; per token without
        discount as in Lu and Thinking Machines Lab 2025, "On-Policy Distillation".
    """
    return teacher_logprobs.astype(np.float64) - sampling_logprobs.astype(np.float64)
