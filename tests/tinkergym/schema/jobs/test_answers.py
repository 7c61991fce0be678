"""Every kind of job answers the same questions."""

import pytest

from tinkergym import opponents
from tinkergym.algorithms import GRPO
from tinkergym.schema.evaluate_every import EvaluateEvery
from tinkergym.schema.jobs.parts import Groups
from tinkergym.schema.jobs.seats import SharedWith, Train
from tinkergym.schema.parsing import parse_spec

BOARD = {"environment": {"id": "board/TicTacToe-v0"}, "steps": 4}
DATA = {"data": "0" * 64, "steps": 4}
HERE = {"evaluate": EvaluateEvery(2, "local/Mine-v0")}
THERE = {"evaluate": EvaluateEvery(2, "board/TicTacToeVs-v0")}


@pytest.mark.parametrize(
    ("settings", "plays", "played_by", "datasets"),
    [
        ({**BOARD, "rollout": "script"}, True, "script", {}),
        ({**BOARD, "kind": "distillation", "teacher": "nano", "rollout": "client"}, True, "client", {}),
        ({**DATA, "kind": "sft"}, False, "", {"data": "0" * 64}),
        ({**DATA, "kind": "sft", **HERE}, False, "client", {"data": "0" * 64}),
        (
            {**DATA, "kind": "preference", **THERE, "eval_data": "1" * 64},
            False,
            "server",
            {"data": "0" * 64, "eval_data": "1" * 64},
        ),
        ({"kind": "policy"}, False, "", {}),
    ],
)
def test_tells_who_plays_and_on_what_data(settings, plays, played_by, datasets):
    spec = parse_spec(settings)
    assert (spec.played is not None, spec.played_by, spec.datasets) == (plays, played_by, datasets)
    assert spec.by_calls == (settings.get("kind") == "policy")


@pytest.mark.parametrize(
    ("settings", "models"),
    [
        (BOARD, {"model": "nano"}),
        ({**BOARD, "kind": "distillation", "teacher": "large"}, {"model": "nano", "teacher": "large"}),
        ({**BOARD, "kind": "distillation", "teacher": "job-7@3"}, {"model": "nano"}),
        ({"kind": "policy", "model": "large"}, {"model": "large"}),
    ],
)
def test_names_base_models_by_setting(settings, models):
    assert parse_spec(settings).models() == models


def test_tells_episodes_of_step():
    rl = parse_spec({**BOARD, "algorithm": GRPO(group_size=4, groups_per_step=3, dynamic_sampling_rounds=2)})
    assert (rl.groups.episodes, rl.groups.most_episodes) == (12, 36)
    distilled = parse_spec({**BOARD, "kind": "distillation", "teacher": "nano", "episodes_per_step": 6})
    assert distilled.groups == Groups(6, fields=("episodes_per_step", ""))


def test_names_every_policy_that_it_refers_to():
    agents = {
        "x": Train(initial_policy="job-1@2"),
        "o": SharedWith("x"),
        "y": opponents.Frozen("job-3@4"),
        "z": opponents.Replay("job-5"),
    }
    assert parse_spec({**BOARD, "agents": agents}).references() == {
        "agents.x.initial_policy": "job-1@2",
        "agents.z.job": "job-5",
        "opponents.0": "job-3@4",
    }
    distilled = {**BOARD, "kind": "distillation", "initial_policy": "job-1", "teacher": "job-2@best"}
    assert parse_spec(distilled).references() == {"initial_policy": "job-1", "teacher": "job-2@best"}
    assert parse_spec({**distilled, "teacher": "nano"}).references() == {"initial_policy": "job-1"}
