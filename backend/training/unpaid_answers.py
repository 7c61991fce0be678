"""Answers that no turn stands for: older clients leave out the one at which an episode failed.

Pure. Whoever learns from episodes, or counts in them, may take it for granted that each sampled token is in a
turn; here is where records that say otherwise are completed.
"""

from __future__ import annotations

from backend.training.step_report import Played
from tinkergym.loop.trajectory import Trajectory, Turn
from tinkergym.wire import EpisodeRequest, EpisodeResult


def with_every_answer(played: Played) -> Played:
    """Return the episodes with what was sampled behind the last turn as turns of their own, of reward 0.

    Their version is the oldest that it can have been, so a bound on staleness errs on the safe side.
    """
    complete: list[tuple[EpisodeRequest, EpisodeResult]] = []
    for request, result in played:
        missing = missing_turns(result.trajectory, request.policy_version)
        if not missing:
            complete.append((request, result))
            continue
        turns = [*result.trajectory.turns, *missing]
        trajectory = result.trajectory.model_copy(update={"turns": turns})
        complete.append((request, result.model_copy(update={"trajectory": trajectory})))
    return complete


def missing_turns(trajectory: Trajectory, asked_version: int) -> list[Turn]:
    """Return turns for what was sampled behind the last turn of an episode that asked for this version."""
    first, begin, version = 0, 0, asked_version
    if trajectory.turns:
        last = trajectory.turns[-1]
        first, begin, version = last.segment, last.end, max(asked_version, last.policy_version)
    missing: list[Turn] = []
    for number in range(first, len(trajectory.segments)):
        mask = trajectory.segments[number].loss_mask
        sampled = [place for place in range(begin, len(mask)) if mask[place]]
        begin = 0
        if sampled:
            missing.append(
                Turn(
                    segment=number,
                    start=sampled[0],
                    end=sampled[-1] + 1,
                    policy_version=version,
                    finish_reason="stop",
                    observation="",
                    action="",
                    reward=0.0,
                )
            )
    return missing
