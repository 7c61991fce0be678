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
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.trajectory.outcomes import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """The state of a step's rounds."""

    groups: list[int]
    """The groups to train on, one at each of the step's `groups_per_step` places."""
    wanted: list[int]
    """Groups to play next; empty if the step is complete."""
    replaced: int
    """Number of groups that were played and replaced."""


def rounds_so_far(spec: RLSpec, played: Played) -> Rounds:
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
    for _ in range(spec.algorithm.replacement_rounds):
        unvaried = [place for place, group in enumerate(places) if _has_zero_variance(spec, results[group])]
        new = list(range(unused, unused + len(unvaried)))
        if any(group not in results for group in new):
            return Rounds(groups=places, wanted=new, replaced=unused - len(places))
        for place, group in zip(unvaried, new, strict=True):
            places[place] = group
        unused += len(new)
    return Rounds(groups=places, wanted=[], replaced=unused - len(places))


def learned_from(spec: RLSpec, played: Played) -> tuple[Played, int]:
    """Return the episodes of the remaining groups, by place, and how many groups were replaced."""
    if not spec.algorithm.replacement_rounds:
        return played, 0
    rounds = rounds_so_far(spec, played)
    by_group = defaultdict(list)
    for pair in played:
        by_group[pair[0].group].append(pair)
    return [pair for group in rounds.groups for pair in by_group[group]], rounds.replaced


def _has_zero_variance(spec: RLSpec, seats: Sequence[PlayedSeat]) -> bool:
    """Whether a group has zero variance at every seat."""
    by_seat: dict[int, list[Outcome]] = defaultdict(list)
    for seat in seats:
        valid = by_seat[seat.group]
        if counts(spec, seat.trajectory):
            rewards = shaped_rewards(spec, seat.trajectory)
            earned = compared_return(seat.trajectory, rewards)
            valid.append(Outcome(trajectory=seat.trajectory, rewards=rewards, earned=earned))
    return all(spec.algorithm.has_zero_variance(group) for group in by_seat.values())
