"""Settings of jobs that train the agents of a game."""

from __future__ import annotations

import pytest

from tinkergym import opponents
from tinkergym.algorithms import GRPO
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.parts import LoRA, Sampling
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import SharedWith, Train
from tinkergym.schema.parsing import parse_spec

ELSEWHERE = opponents.External(url="https://models.example/v1", model="small", timeout_seconds=30)
TWO = {"x": {"kind": "train"}, "o": {"kind": "train", "adapter": {"kind": "lora", "rank": 4}}}


def of_game(agents, **settings):
    board = {"id": "board/TicTacToe-v0"}
    return parse_spec({"environment": board, "steps": 1, "agents": agents, **settings})


def test_gives_each_agent_own_adapter_or_the_jobs():
    spec = of_game(TWO, adapter=LoRA(rank=2))
    assert spec.trained_agents == ("x", "o")
    assert [spec.adapter_of(agent).rank for agent in spec.trained_agents] == [2, 4]
    assert RLSpec.model_validate_json(spec.model_dump_json()) == spec


def test_trains_one_policy_in_job_without_agents():
    assert (of_game({}).trained_agents, of_game({}).adapter_of("")) == (("",), LoRA())


def test_allows_external_turns_within_a_step_that_lasts_enough():
    assert of_game({"x": Train(), "y": ELSEWHERE}).trained_agents == ("x",)
    longer = {"limits": {"step_timeout_seconds": 61}}
    assert of_game({"x": Train(), "y": ELSEWHERE, "z": ELSEWHERE}, **longer).trained_agents == ("x",)


def test_denies_own_policy_to_a_seat_that_shares_one():
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
def test_rejects_seats_that_nobody_can_play(agents):
    with pytest.raises(InvalidRequestError):
        of_game(agents)


@pytest.mark.parametrize(
    ("agents", "settings", "named"),
    [
        ({"x": opponents.Base(), "o": opponents.Scripted("random")}, {}, "agents"),
        ({"x": Train(), "o": opponents.League(of="o")}, {}, "agents"),
        ({"x": Train(model="other"), "o": Train()}, {"deterministic": True}, "deterministic"),
        ({"x": Train(model="other"), "o": Train()}, {"chat_template": "plain"}, "chat_template"),
        ({"x": Train(algorithm=GRPO(group_size=3)), "o": Train()}, {}, "group_size"),
        ({"x": Train(algorithm=GRPO(warmup_steps=9)), "o": Train()}, {}, "warmup_steps"),
        (
            {"x": Train(algorithm=GRPO(credit="turn", dynamic_sampling_rounds=1)), "o": Train()},
            {"algorithm": GRPO(dynamic_sampling_rounds=1)},
            "credit",
        ),
        ({"x": Train(), "y": ELSEWHERE, "z": ELSEWHERE}, {}, "step_timeout_seconds"),
        ({"x": Train(), "o": opponents.Replay("job-1")}, {"environment": {"id": "ws://a:1/x"}}, "agents"),
        ({"x": Train(), "o": opponents.Base()}, {"self_play": True}, "self_play"),
        ({"x": Train(), "o": opponents.Base()}, {"updates": "alternate"}, "updates"),
        (TWO, {"updates": "only:z"}, "updates"),
        (TWO, {"updates": "sometimes"}, "updates"),
        (TWO, {"evaluate": {"steps": 1, "agent": "z"}}, "evaluate"),
        (TWO, {"evaluate": {"steps": 1, "environment": "board/Gomoku-v0"}}, "evaluate"),
        ({}, {"evaluate": {"steps": 1, "agent": "x"}}, "evaluate"),
        ({}, {"collapse_guard": False}, "collapse_guard"),
    ],
)
def test_rejects_settings_by_name_that_have_no_effect_in_games(agents, settings, named):
    with pytest.raises(InvalidRequestError, match=named):
        of_game(agents, **settings)


@pytest.mark.parametrize(
    "league",
    [
        {"anchor_share": 0.6, "current_share": 0.6},
        {"anchors": []},
        {"anchors": [{"kind": "base"}], "anchor_share": 0},
        {"anchor_share": 0.5, "current_share": 0.5, "snapshot_every": 3},
    ],
)
def test_rejects_league_whose_settings_contradict_each_other(league):
    with pytest.raises(InvalidRequestError):
        opponents.League(**league)


def test_overrides_the_jobs_settings_by_seats_except_its_groups():
    job = GRPO(group_size=4, groups_per_step=2, learning_rate=1e-3)
    seat = Train(algorithm=GRPO(learning_rate=0.1), sampling=Sampling(max_turn_tokens=5))
    spec = of_game({"x": seat, "o": Train()}, algorithm=job)
    own = spec.for_agent("x").algorithm
    assert (own.learning_rate, own.group_size, own.groups_per_step) == (0.1, 4, 2)
    assert spec.for_agent("x").sampling.max_turn_tokens == 5
    assert spec.for_agent("o").algorithm == job


def test_trains_policies_together_in_turn_or_alone():
    def updated(updates):
        return [of_game(TWO, steps=9, updates=updates).updated_at(step) for step in range(1, 5)]

    assert updated("all") == [("x", "o")] * 4
    assert updated("alternate") == [("x",), ("o",)] * 2
    assert updated("alternate:2") == [("x",), ("x",), ("o",), ("o",)]
    assert updated("only:o") == [("o",)] * 4


def test_seats_one_policy_everywhere_in_self_play_with_random_anchor():
    spec = of_game({}, self_play=True)
    seated = spec.seated(["x", "o"], ["random", "heuristic"])
    assert seated.agents == {"x": Train(), "o": SharedWith("x")}
    assert seated.self_play.anchors == [opponents.Scripted("random")]
    assert spec.seated(["x", "o"], []).self_play.anchors == [opponents.Base()]


def test_renders_each_seat_with_its_own_model_and_variables():
    seats = {"x": Train(), "o": Train(model="other"), "y": Train(template_variables={"effort": "low"})}
    job = of_game(seats, template_variables={"effort": "high"})
    assert job.for_agent("o").template_variables == {"effort": "high"}
    assert job.for_agent("y").template_variables == {"effort": "low"}
    names = [job.rendered_by("job-1", agent) for agent in seats]
    assert names == ["job-1", "job-1/o", "job-1/y"]
    plain = job.model_copy(update={"template_variables": {}})
    assert [plain.rendered_by("job-1", agent) for agent in seats] == ["nano", "other", "job-1/y"]
