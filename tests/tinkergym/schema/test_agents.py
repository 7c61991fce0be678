"""Settings of jobs that train the agents of a game."""

from __future__ import annotations

import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.job_spec import JobSpec, LoRA, SharedWith, Train
from tinkergym.schema.parsing import parse_spec

TWO = {"x": {"kind": "train"}, "o": {"kind": "train", "adapter": {"kind": "lora", "rank": 4}}}


def of_game(agents, **settings):
    return parse_spec({"environment": {"id": "board/TicTacToe-v0"}, "steps": 1, "agents": agents, **settings})


def test_each_agent_has_its_own_adapter_or_the_jobs():
    spec = of_game(TWO, adapter=LoRA(rank=2))
    assert spec.trained_agents == ("x", "o")
    assert [spec.adapter_of(agent).rank for agent in spec.trained_agents] == [2, 4]
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


def test_a_job_without_agents_trains_one_policy():
    assert (of_game({}).trained_agents, of_game({}).adapter_of("")) == (("",), LoRA())


def test_a_seat_that_shares_a_policy_has_none_of_its_own():
    assert of_game({"x": Train(), "o": SharedWith(agent="x")}).trained_agents == ("x",)


@pytest.mark.parametrize(
    "agents",
    [
        {"x": {"kind": "shared", "agent": "o"}, "o": {"kind": "shared", "agent": "x"}},
        {"x": {"kind": "train"}, "o": {"kind": "shared", "agent": "z"}},
        {"x": {"kind": "shared", "agent": "x"}},
        {"x y": {"kind": "train"}},
        {"x/y": {"kind": "train"}},
        {"": {"kind": "train"}},
        {"x": {"kind": "trained"}},
        {"x": {"kind": "train", "rank": 8}},
    ],
)
def test_seats_that_nobody_can_play_are_refused(agents):
    with pytest.raises(InvalidRequestError):
        of_game(agents)


@pytest.mark.parametrize(
    "setting",
    [
        {"deterministic": True},
        {"max_staleness": 1},
        {"initial_policy": "job-1@2"},
        {"rollout": "script"},
        {"evaluate": {"steps": 1}},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_what_jobs_with_several_agents_cannot_do_yet_is_refused_by_name(setting):
    with pytest.raises(InvalidRequestError, match=next(iter(setting))):
        of_game(TWO, **setting)
