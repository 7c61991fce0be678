from typing import Any

import pytest

import tinkergym as tg
from tinkergym.algorithms import PPO, RLOO, DrGRPO, ReinforcePlusPlus
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.algorithm_registry import BUILT_IN, Algorithm
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.parsing import parse_spec
from tinkergym.schema.policy_gradient import PolicyGradient

GOOD = {"environment": {"id": "board/TicTacToeVs-v0"}, "steps": 3}


def test_takes_settings_without_a_name_as_grpos():
    assert parse_spec({**GOOD, "algorithm": {"group_size": 4}}).algorithm == tg.GRPO(group_size=4)
    assert parse_spec(GOOD).algorithm == tg.GRPO()


@pytest.mark.parametrize("cls", BUILT_IN.values())
def test_restores_algorithm_after_the_wire(cls):
    spec = parse_spec({**GOOD, "algorithm": cls(learning_rate=0.5)})
    assert RLSpec.model_validate_json(spec.model_dump_json()).algorithm == cls(learning_rate=0.5)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("clip_high", 1e308),
        ("entropy_coefficient", 1e308),
        ("updates_per_step", 10**9),
        ("learning_rate", 2e3),
    ],
)
def test_rejects_numbers_that_can_only_be_slips(setting, value):
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec({**GOOD, "algorithm": {setting: value}})
    assert caught.value.field == f"algorithm.{setting}"


@pytest.mark.parametrize("name", BUILT_IN)
def test_writes_each_name_as_plain_settings(name):
    assert parse_spec({**GOOD, "algorithm": {"name": name}}).algorithm.name == name


@pytest.mark.parametrize(
    ("write", "field", "text"),
    [
        (lambda: tg.GRPO(loss="reinforce", clip_low=0.1), "GRPO.clip_low", "loss='ppo', 'cispo' or 'gspo'"),
        (lambda: tg.GRPO(loss="dro", clip_high=0.1), "GRPO.clip_high", "only takes effect with loss"),
        (lambda: tg.GRPO(loss="cispo", dual_clip=3.0), "GRPO.dual_clip", "loss='ppo' or 'gspo'"),
        (lambda: tg.GRPO(dual_clip=1.1), "GRPO.dual_clip", "above 1 + clip_high = 1.2"),
        (lambda: tg.GRPO(dro_beta=0.5), "GRPO.dro_beta", "loss='dro'"),
        (lambda: tg.GRPO(kl_in="reward"), "GRPO.kl_in", "kl_coefficient above 0"),
        (lambda: tg.GRPO(kl_estimator="k2"), "GRPO.kl_estimator", "kl_coefficient above 0"),
        (lambda: tg.GRPO(kl_coefficient=0.1, kl_estimator="k1"), "GRPO.kl_estimator", "kl_in='reward'"),
        (lambda: tg.GRPO(importance_cap=3.0), "GRPO.importance_cap", "importance_correction"),
        (lambda: tg.GRPO(importance_level="sequence"), "GRPO.importance_level", "importance_correction"),
        (lambda: tg.GRPO(overlong_penalty=0.5), "GRPO.overlong_penalty", "overlong_tokens above 0"),
        (lambda: tg.GRPO(discount=0.9), "GRPO.discount", "credit='turn'"),
        (
            lambda: tg.GRPO(baseline="batch", dynamic_sampling_rounds=2),
            "GRPO.dynamic_sampling_rounds",
            "with their group",
        ),
        (lambda: RLOO(group_size=1), "RLOO.group_size", "raise group_size"),
        (
            lambda: ReinforcePlusPlus(baseline="group"),
            "ReinforcePlusPlus.group_size",
            "or choose baseline='batch'",
        ),
        (lambda: RLOO(baseline="batch"), "RLOO.baseline", "unknown setting"),
        (
            lambda: PPO(value_clip=0.2),
            "PPO.value_clip",
            "updates_per_step or minibatches above 1",
        ),
        (lambda: PPO(credit="turn"), "PPO.credit", "unknown setting"),
        (lambda: PPO(normalize="std"), "PPO.normalize", "unknown setting"),
        (
            lambda: PPO(dynamic_sampling_rounds=1),
            "PPO.dynamic_sampling_rounds",
            "unknown setting",
        ),
        (lambda: PPO(value_coefficient=0), "PPO.value_coefficient", "greater than 0"),
        (lambda: PPO(gae_lambda=1.5), "PPO.gae_lambda", "less than or equal to 1"),
        (lambda: PPO(loss="reinforce", clip_high=0.3), "PPO.clip_high", "only takes effect with loss"),
        (lambda: tg.GRPO(loss="pppo"), "GRPO.loss", "did you mean 'ppo'"),
    ],
)
def test_rejects_setting_without_effect_with_what_to_do(write, field, text):
    with pytest.raises(InvalidRequestError) as caught:
        write()
    assert caught.value.field == field
    assert text in str(caught.value)


def test_names_place_of_wrong_setting_in_jobs_algorithm():
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec({**GOOD, "algorithm": {"name": "rloo", "group_sizee": 3}})
    assert caught.value.field == "algorithm.group_sizee"
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec({**GOOD, "algorithm": {"name": "rlo"}})
    assert caught.value.field == "algorithm.name"


def test_fits_length_penalty_into_an_answer():
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec({**GOOD, "algorithm": {"overlong_tokens": 65}})
    assert caught.value.field == "algorithm.overlong_tokens"
    parse_spec({**GOOD, "algorithm": {"overlong_tokens": 64}})


def test_reads_a_job_of_yesterday_as_before():
    """What was stored before there were other algorithms: GRPO's fields of then."""
    stored = {
        "name": "grpo",
        "group_size": 8,
        "groups_per_step": 16,
        "learning_rate": 1e-3,
        "lr_schedule": "constant",
        "warmup_steps": 0,
        "baseline": "group",
        "normalize": "none",
        "aggregation": "token",
        "clip_low": 0.2,
        "clip_high": 0.2,
        "entropy_coefficient": 0.0,
        "updates_per_step": 1,
        "max_grad_norm": 1.0,
        "weight_decay": 0.0,
    }
    assert parse_spec({**GOOD, "algorithm": stored}).algorithm == tg.GRPO()


def test_divides_by_a_constant_only_in_dr_grpo():
    assert (DrGRPO().aggregation, tg.GRPO().aggregation) == ("constant", "token")


def test_takes_what_all_share_as_no_algorithm():
    assert PolicyGradient not in Algorithm.__args__[0].__args__


@pytest.mark.parametrize(
    ("name", "value"), [("clip_low", 0.3), ("clip_high", 0.3), ("dual_clip", 3.0), ("dro_beta", 0.5)]
)
def test_rejects_bounds_of_a_ratio_that_is_always_1(name, value):
    """With a correction the ratio is to the policy that the step begins with: one update never leaves it."""
    loss = "dro" if name == "dro_beta" else "ppo"
    once: dict[str, Any] = {"loss": loss, "importance_correction": "truncated", name: value}
    with pytest.raises(InvalidRequestError, match=f"{name}.* only takes effect with updates_per_step"):
        tg.GRPO(**once)
    tg.GRPO(**once, updates_per_step=2)
    tg.GRPO(**once, minibatches=2)
    tg.GRPO(**once | {"importance_correction": "none"})


@pytest.mark.parametrize("steps", [3, 4])
def test_rejects_warm_up_that_never_ends(steps):
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec({**GOOD, "steps": steps, "algorithm": {"warmup_steps": 4}})
    assert caught.value.field == "algorithm.warmup_steps"
    parse_spec({**GOOD, "steps": 5, "algorithm": {"warmup_steps": 4}})
    written = {"model": "nano", "data": "0" * 64, "steps": steps, "warmup_steps": 4}
    for kind in ("sft", "preference"):
        with pytest.raises(InvalidRequestError) as caught:
            parse_spec({"kind": kind, **written})
        assert caught.value.field == "warmup_steps"
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec({**GOOD, "kind": "distillation", "teacher": "nano", "steps": steps, "warmup_steps": 4})
    assert caught.value.field == "warmup_steps"
