"""Dynamic sampling: zero-variance groups are replaced by new ones, a limited number of times per step.

A pure function of the results so far, so a resumed job, another worker and a replay find the same rounds
without any stored state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from backend.episodes.played import Played, PlayedSeat, trained_seats
from backend.jobs.turn_rewards import compared_return, counts, shaped_rewards
from backend.learner.shaping import returns_to_go
from tinkergym.evaluation.advantages import group_advantages, turn_advantages
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.trajectory.trajectory import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """The state of a step's rounds."""

    groups: list[int]
    """The groups to train on, one at each of the step's `groups_per_step` places."""
    wanted: list[int]
    """Groups to play next; empty if the step is complete."""
    replaced: int
    """Number of groups that were played and replaced."""


def follow(spec: RLSpec, played: Played) -> Rounds:
    """Process the rounds in `played`, and return what comes next.

    In each round every zero-variance group is replaced by a new one in its place, with a number that has not
    been used in this step. Groups with zero variance after the last round stay: they give gradient 0 but
    count in the means.

    Args:
        spec: The job's settings.
        played: All episodes of the step so far, in complete rounds.

    Source:
        DAPO, arXiv:2503.14476, which samples until the batch is full; here at most
        `algorithm.dynamic_sampling_rounds` times.
    """
    results: dict[int, list[PlayedSeat]] = defaultdict(list)
    for seat in trained_seats(played):
        results[seat.request.group].append(seat)
    places = list(range(spec.algorithm.groups_per_step))
    unused = len(places)
    for _ in range(spec.algorithm.dynamic_sampling_rounds):
        silent = [place for place, group in enumerate(places) if _is_silent(spec, results[group])]
        new = list(range(unused, unused + len(silent)))
        if any(group not in results for group in new):
            return Rounds(groups=places, wanted=new, replaced=unused - len(places))
        for place, group in zip(silent, new, strict=True):
            places[place] = group
        unused += len(new)
    return Rounds(groups=places, wanted=[], replaced=unused - len(places))


def learned_from(spec: RLSpec, played: Played) -> tuple[Played, int]:
    """Return the episodes of the remaining groups, by place, and how many groups were replaced."""
    if not spec.algorithm.dynamic_sampling_rounds:
        return played, 0
    rounds = follow(spec, played)
    by_group = defaultdict(list)
    for pair in played:
        by_group[pair[0].group].append(pair)
    return [pair for group in rounds.groups for pair in by_group[group]], rounds.replaced


def _is_silent(spec: RLSpec, seats: Sequence[PlayedSeat]) -> bool:
    """Whether a group has zero variance at every seat."""
    by_seat: dict[int, list[Trajectory]] = defaultdict(list)
    for seat in seats:
        by_seat[seat.group].append(seat.trajectory)
    return all(_are_silent(spec, trajectories) for trajectories in by_seat.values())


def _are_silent(spec: RLSpec, played: Sequence[Trajectory]) -> bool:
    """Whether some trajectories have zero variance, or too few of them count."""
    trajectories = [trajectory for trajectory in played if counts(spec, trajectory)]
    if len(trajectories) < 2:
        return True
    rewards = [shaped_rewards(spec, trajectory) for trajectory in trajectories]
    if spec.algorithm.credit != "turn":
        returns = [compared_return(*pair) for pair in zip(trajectories, rewards, strict=True)]
        return not group_advantages(returns, [0] * len(returns), [True] * len(returns)).values.any()
    # Not the rewards themselves: episodes of different length can also have equal advantages.
    to_go = [returns_to_go(some, discount=spec.algorithm.discount) for some in rewards]
    advantages, _ = turn_advantages(to_go, [0] * len(to_go), [True] * len(to_go))
    return not any(turns.any() for turns in advantages)
