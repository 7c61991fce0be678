"""Each rule of the table refuses a job that breaks it, with its code and the setting's name."""

import pytest

from tinkergym import opponents
from tinkergym.algorithms import GRPO
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.evaluate_every import EvaluateEvery
from tinkergym.schema.jobs.seats import SharedWith, Train
from tinkergym.schema.jobs.spec import KINDS
from tinkergym.schema.parsing import parse_spec

PLAYED = {"environment": {"id": "board/TicTacToe-v0"}, "steps": 4}
DATA = {"kind": "sft", "data": "0" * 64, "steps": 4}
EASY, HARD = {"id": "a/Easy-v0", "weight": 1.0}, {"id": "b/Hard-v0", "weight": 1.0}
SEVERAL = {"environments": [EASY, HARD], "steps": 4}
AT_A_SERVER = {"id": "ws://a:1/x"}
TWO = {"x": Train(), "o": Train()}
ELSEWHERE = opponents.External(url="https://models.example/v1", model="small", timeout_seconds=90)
ROUNDS = GRPO(dynamic_sampling_rounds=1)


def evaluating(**settings):
    return {"evaluate": {"steps": 2, **settings}}


def against(seat, **settings):
    return {**PLAYED, "agents": {"x": Train(), "o": seat}, **settings}


def seated(**own):
    """A job whose seat x has an algorithm of its own."""
    return {**PLAYED, "agents": {"x": Train(algorithm=GRPO(**own)), "o": Train()}}


BROKEN = [
    ("evaluation_without_environment", "evaluate", {**DATA, **evaluating()}),
    ("evaluation_of_another_script", "evaluate", {**PLAYED, **evaluating(environment="local/Mine-v0")}),
    (
        "evaluations_on_both_sides",
        "evaluate",
        {**DATA, "evaluate": [EvaluateEvery(2, "local/Mine-v0"), EvaluateEvery(2, "a/Easy-v0")]},
    ),
    ("evaluation_at_an_address", "evaluate", {**PLAYED, **evaluating(environment="ws://a:1/x")}),
    (
        "evaluation_at_another_server",
        "evaluate",
        {**PLAYED, "environment": {"id": "tinkergym/Remote-v0"}, **evaluating(env_kwargs={"url": "x"})},
    ),
    ("several_environments_end_the_job", "evaluate", {**SEVERAL, **evaluating(target=1.0)}),
    ("evaluations_with_one_name", "evaluate", {**PLAYED, "evaluate": [EvaluateEvery(2), EvaluateEvery(3)]}),
    ("unknown_best_by", "best_by", {**PLAYED, "best_by": "other"}),
    ("two_evaluation_sets", "held_out", {**DATA, "eval_data": "1" * 64, "held_out": 0.1}),
    ("no_effect", "eval_every", {**DATA, "eval_every": 3}),
    ("endless_warmup", "warmup_steps", {**DATA, "warmup_steps": 4}),
    (
        "endless_warmup",
        "warmup_steps",
        {**PLAYED, "kind": "distillation", "teacher": "nano", "warmup_steps": 4},
    ),
    ("one_of_several_environments", "environments", {"environments": [EASY], "steps": 4}),
    ("not_the_first_environment", "environment", {**SEVERAL, "environment": {"id": "b/Hard-v0"}}),
    ("environment_twice", "environments", {"environments": [EASY, EASY], "steps": 4}),
    ("environments_of_a_script", "environments", {**SEVERAL, "rollout": "script"}),
    ("executor_without_processes", "executor", {**PLAYED, "executor": "process", "deterministic": True}),
    ("executor_without_processes", "executor", {**PLAYED, "executor": "process", "rollout": "script"}),
    ("script_cannot_retry", "on_failure", {**PLAYED, "on_failure": "retry:2", "rollout": "script"}),
    ("no_effect", "client_timeout_seconds", {**PLAYED, "client_timeout_seconds": 5.0}),
    ("script_cannot_evaluate", "evaluate", {**PLAYED, **evaluating(), "rollout": "script"}),
    (
        "client_has_no_such_environment",
        "evaluate",
        {**PLAYED, **evaluating(environment="a/Easy-v0"), "rollout": "client"},
    ),
    (
        "overlong_tokens_never_reached",
        "algorithm.overlong_tokens",
        {**PLAYED, "algorithm": GRPO(overlong_tokens=4), "limits": {"max_episode_tokens": 60}},
    ),
    ("group_rewards_in_lockstep", "group_rewards", {**PLAYED, "group_rewards": True, "deterministic": True}),
    ("group_rewards_of_a_script", "group_rewards", {**PLAYED, "group_rewards": True, "rollout": "script"}),
    (
        "group_rewards_without_groups",
        "group_rewards",
        {**PLAYED, "group_rewards": True, "algorithm": GRPO(group_size=1, baseline="batch")},
    ),
    ("stale_in_lockstep", "max_staleness", {**PLAYED, "max_staleness": 1, "deterministic": True}),
    ("no_effect", "kl_metric_every", {**PLAYED, "kl_metric_every": 3, "algorithm": GRPO(kl_coefficient=0.1)}),
    ("no_effect", "collapse_guard", {**PLAYED, "collapse_guard": False}),
    ("nothing_to_train", "agents", {**PLAYED, "agents": {"x": opponents.Base()}}),
    ("no_such_policy", "agents.o.of", against(opponents.League(of="o"))),
    ("no_such_policy", "agents.o.agent", against(SharedWith("z"))),
    ("no_such_policy", "updates", {**PLAYED, "agents": TWO, "updates": "only:z"}),
    ("no_such_policy", "evaluate", {**PLAYED, "agents": TWO, **evaluating(agent="z")}),
    ("not_a_policy", "agents.o.initial_policy", against(Train(initial_policy="my-policy"))),
    ("self_play_with_replay", "self_play", against(opponents.Replay("job-1"), self_play=True)),
    ("self_play_of_another", "self_play.of", {**PLAYED, "self_play": opponents.League(of="x")}),
    ("self_play_at_one_seat", "self_play", against(opponents.Base(), self_play=True)),
    ("failed_games_kept", "on_failure", {**PLAYED, "agents": TWO, "on_failure": "keep"}),
    ("environments_of_a_game", "environments", {**SEVERAL, "agents": TWO}),
    ("updates_of_one_policy", "updates", against(opponents.Base(), updates="alternate")),
    ("evaluated_seat_without_game", "evaluate", {**PLAYED, **evaluating(agent="x")}),
    ("another_game_evaluated", "evaluate", {**PLAYED, "agents": TWO, **evaluating(environment="a/Easy-v0")}),
    ("external_in_lockstep", "deterministic", against(ELSEWHERE, deterministic=True)),
    ("external_slower_than_a_step", "limits.step_timeout_seconds", against(ELSEWHERE)),
    ("replay_outside_the_service", "rollout", against(opponents.Replay("job-1"), rollout="client")),
    (
        "replay_of_other_groups",
        "algorithm.dynamic_sampling_rounds",
        against(opponents.Replay("job-1"), algorithm=ROUNDS),
    ),
    (
        "overlong_tokens_exceed_a_turn",
        "algorithm.overlong_tokens",
        {**PLAYED, "algorithm": GRPO(overlong_tokens=65)},
    ),
    ("overlong_tokens_exceed_a_turn", "agents.x.algorithm.overlong_tokens", seated(overlong_tokens=65)),
    ("endless_warmup", "algorithm.warmup_steps", {**PLAYED, "algorithm": GRPO(warmup_steps=4)}),
    ("endless_warmup", "agents.x.algorithm.warmup_steps", seated(warmup_steps=4)),
    (
        "stale_without_correction",
        "max_staleness",
        {**PLAYED, "max_staleness": 1, "algorithm": GRPO(loss="reinforce")},
    ),
    ("stale_without_correction", "max_staleness", {**seated(loss="reinforce"), "max_staleness": 1}),
    (
        "minibatches_without_groups",
        "agents.x.algorithm.minibatches",
        {**seated(minibatches=3), "algorithm": GRPO(groups_per_step=2)},
    ),
    (
        "no_siblings",
        "agents.x.algorithm.name",
        {**seated(), "algorithm": GRPO(group_size=1, baseline="batch")},
    ),
    ("groups_of_a_seat", "agents.x.algorithm.group_size", seated(group_size=3)),
    ("rounds_of_a_seat", "agents.x.algorithm.dynamic_sampling_rounds", seated(dynamic_sampling_rounds=1)),
    (
        "replacements_of_a_seat",
        "agents.x.algorithm.credit",
        {**seated(credit="turn", dynamic_sampling_rounds=1), "algorithm": ROUNDS},
    ),
    (
        "turns_of_a_seat",
        "agents.x.sampling.max_turn_tokens",
        {
            **PLAYED,
            "algorithm": GRPO(dynamic_sampling_rounds=1, overlong_tokens=2),
            "agents": {"x": Train(sampling={"max_turn_tokens": 9}), "o": Train()},
        },
    ),
    (
        "several_models_in_lockstep",
        "deterministic",
        {**PLAYED, "agents": {"x": Train(model="other"), "o": Train()}, "deterministic": True},
    ),
    (
        "template_of_several_models",
        "chat_template",
        {**PLAYED, "agents": {"x": Train(model="other"), "o": Train()}, "chat_template": "plain"},
    ),
    ("game_at_a_server", "agents", against(opponents.Replay("job-1"), environment=AT_A_SERVER)),
    (
        "game_at_a_server",
        "agents",
        {**PLAYED, "environment": AT_A_SERVER, "agents": {"x": Train(tools=["a.b:c"])}},
    ),
    (
        "tools_of_a_script",
        "agents.x.tools",
        {**PLAYED, "agents": {"x": Train(tools=["a.b:c"])}, "rollout": "script"},
    ),
]


@pytest.mark.parametrize(("code", "field", "settings"), BROKEN)
def test_refuses_job_that_breaks_rule(code, field, settings):
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec(settings)
    assert (caught.value.code, caught.value.field) == (code, field)
    assert caught.value.message


def test_tries_every_rule():
    assert {code for code, _, _ in BROKEN} == {
        rule.code for kind in KINDS.values() for table in kind.rules for rule in table.rules
    }
