from __future__ import annotations

import pytest

from backend.training.episode_requests import step_requests
from backend.training.unpaid_answers import with_every_answer
from tinkergym.loop.trajectory import Segment, StopReason, Trajectory, Turn
from tinkergym.testing.episodes import one_turn_episode
from tinkergym.wire import GRPO, EnvironmentRef, EpisodeResult, JobSpec

SPEC = JobSpec(
    environment=EnvironmentRef(id="x"),
    steps=9,
    algorithm=GRPO(group_size=2, groups_per_step=1),
    max_staleness=2,
)


def segment(mask):
    return Segment(
        token_ids=[1] * len(mask),
        loss_mask=[mark == "x" for mark in mask],
        sampling_logprobs=[-0.5 if mark == "x" else None for mark in mask],
    )


def turn(number, start, end, version):
    return Turn(
        segment=number,
        start=start,
        end=end,
        policy_version=version,
        finish_reason="stop",
        observation="o",
        action="a",
        reward=1.0,
    )


def completed(masks, turns):
    """The turns of an episode of step 6, whose request allows the versions from 3 on."""
    trajectory = Trajectory(
        segments=[segment(mask) for mask in masks],
        turns=turns,
        terminated=False,
        truncated=False,
        stop_reason=StopReason.ENVIRONMENT_ERROR,
        seed=0,
    )
    request = step_requests("job-1", SPEC, 6)[0]
    result = EpisodeResult(episode_id=request.episode_id, lease_id="l", trajectory=trajectory)
    ((_, found),) = with_every_answer([(request, result)])
    return found.trajectory.turns


@pytest.mark.parametrize(
    ("masks", "turns", "place", "version"),
    [
        ([".xx"], [], (0, 1, 3), 3),
        ([".x.xx"], [turn(0, 1, 2, 4)], (0, 3, 5), 4),
        ([".x", "..x"], [turn(0, 1, 2, 5)], (1, 2, 3), 5),
    ],
    ids=["first", "second", "segment"],
)
def test_what_was_sampled_behind_the_last_turn_is_a_turn_that_earned_nothing(masks, turns, place, version):
    *before, last = completed(masks, turns)
    assert before == turns
    assert (last.segment, last.start, last.end) == place
    assert (last.reward, last.policy_version) == (0.0, version)


def test_whole_records_and_those_without_an_answer_stay_as_they_are():
    assert completed(["..", ".x"], [turn(1, 1, 2, 5)]) == [turn(1, 1, 2, 5)]
    assert completed([".."], []) == []
    request = step_requests("job-1", SPEC, 1)[0]
    result = EpisodeResult(episode_id=request.episode_id, lease_id="l", trajectory=one_turn_episode(1.0))
    assert with_every_answer([(request, result)]) == [(request, result)]
