from __future__ import annotations

import pytest
from pydantic import ValidationError

from tinkergym.schema.episodes import EpisodeRequest, EpisodeResult, SeatPlan
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits, Sampling
from tinkergym.testing.made_up_episodes import one_turn_episode
from tinkergym.trajectory.trajectory import ONLY_AGENT


def request(**seats):
    return EpisodeRequest(
        job_id="j",
        episode_id="j:1:0",
        step=1,
        index=0,
        group=0,
        environment=EnvironmentRef(id="board/TicTacToe-v0"),
        seed=0,
        seats=seats,
        limits=Limits(),
        lease_id="",
        lease_seconds=0.0,
    )


def seat(policy, **settings):
    return SeatPlan(
        policy=policy, policy_version=1, model="nano", sampling_seed=7, sampling=Sampling(), **settings
    )


def test_restores_own_policy_and_settings_of_each_seat_from_wire():
    asked = request(x=seat("p"), o=seat("q", system_prompt="Win.", reasoning="drop", trained=False))
    assert EpisodeRequest.model_validate_json(asked.model_dump_json()) == asked
    assert list(asked.seats) == ["x", "o"]


def test_requires_at_least_one_seat_in_episode():
    with pytest.raises(ValidationError, match="seats"):
        request()


def test_holds_each_agent_once_in_a_result():
    two = [one_turn_episode(1.0, agent="x"), one_turn_episode(-1.0, agent="o")]
    result = EpisodeResult(episode_id="j:1:0", lease_id="l", trajectories=two)
    assert EpisodeResult.model_validate_json(result.model_dump_json()) == result
    for wrong, named in (([two[0], two[1], two[0]], "'x'"), ([], "trajectories")):
        with pytest.raises(ValidationError, match=named):
            EpisodeResult(episode_id="j:1:0", lease_id="l", trajectories=wrong)


def test_returns_the_one_trajectory_of_single_seat_episode():
    one = one_turn_episode(1.0)
    result = EpisodeResult(episode_id="j:1:0", lease_id="l", trajectories=[one])
    assert (result.trajectory, one.agent) == (one, ONLY_AGENT)
    two = [one_turn_episode(agent="x"), one_turn_episode(agent="o")]
    with pytest.raises(ValueError, match="values to unpack"):
        _ = EpisodeResult(episode_id="j:1:0", lease_id="l", trajectories=two).trajectory
