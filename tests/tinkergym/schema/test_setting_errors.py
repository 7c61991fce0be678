import math

import pytest

from tinkergym.algorithms import GRPO
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.parts import FullParameters, Limits, LoRA, Sampling
from tinkergym.schema.parsing import parse, parse_spec
from tinkergym.schema.sampling import SampleRequest
from tinkergym.schema.structured import JsonSchema

GOOD = {"environment": {"id": "board/TicTacToeVs-v0"}, "steps": 3}


def refusal(**settings) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec({**GOOD, **settings})
    return caught.value


@pytest.mark.parametrize(
    ("settings", "field", "text"),
    [
        ({"stepps": 1}, "stepps", "did you mean steps"),
        ({"steps": 0}, "steps", "greater than or equal to 1"),
        ({"algorithm": {"group_sizee": 3}}, "algorithm.group_sizee", "did you mean algorithm.group_size"),
        ({"algorithm": {"group_size": 1}}, "algorithm.group_size", "raise group_size or choose"),
        ({"algorithm": {"baseline": "grop"}}, "algorithm.baseline", "did you mean 'group'"),
        ({"adapter": {"kind": "lorra"}}, "adapter.kind", "did you mean 'lora'"),
        ({"adapter": {"kind": "lora", "rnk": 3}}, "adapter.rnk", "did you mean adapter.rank?"),
        ({"adapter": {}}, "adapter", "'kind'"),
        ({"rollout": "clent"}, "rollout", "did you mean 'client'"),
        ({"sampling": {"temperature": math.nan}}, "sampling.temperature", "finite"),
        ({"environment": {"id": "a", "kwargs": {"x": math.inf}}}, "environment.kwargs.x", "finite"),
        ({"sampling": {"temperature": 1e-320}}, "sampling.temperature", "0.001"),
        ({"limits": {"step_timeout_seconds": 1e300}}, "limits.step_timeout_seconds", "less than"),
        ({"client_timeout_seconds": 1e300}, "client_timeout_seconds", "less than"),
        (
            {"client_timeout_seconds": 5.0},
            "client_timeout_seconds",
            "only takes effect with rollout='client'",
        ),
        (
            {
                "algorithm": {"overlong_tokens": 4},
                "sampling": {"max_turn_tokens": 64},
                "limits": {"max_episode_tokens": 60},
            },
            "algorithm.overlong_tokens",
            "max_episode_tokens=60 ends them before",
        ),
        ({"steps": 10**30}, "steps", "less than"),
        ({"on_failure": "retry"}, "on_failure", "drop|keep|retry"),
        ({"initial_policy": "job@x"}, "initial_policy", "is not a valid policy reference"),
        ({"steps": True}, "steps", "must be a number, not True"),
        ({"steps": "3"}, "steps", "must be a number, not '3'"),
        ({"adapter": {"kind": "lora", "rank": True}}, "adapter.rank", "must be a number, not True"),
        ({"algorithm": {"learning_rate": True}}, "algorithm.learning_rate", "must be a number, not True"),
        ({"parity_threshold": "0.1"}, "parity_threshold", "must be a number, not '0.1'"),
        ({"zzz": 1}, "zzz", "known settings: model, adapter"),
        # Written in the wrong section.
        ({"learning_rate": 0.1}, "learning_rate", "did you mean algorithm.learning_rate?"),
        ({"temperature": 0.7}, "temperature", "did you mean sampling.temperature?"),
        ({"learning_rat": 0.1}, "learning_rat", "did you mean algorithm.learning_rate?"),
        ({"sampling": {"temprature": 1}}, "sampling.temprature", "did you mean sampling.temperature?"),
        ({"algorithm": {"temperature": 1}}, "algorithm.temperature", "did you mean sampling.temperature?"),
        ({"top_p": 0.9}, "top_p", "policy.evaluate take top_p"),
        # By a name that other libraries have for it.
        ({"lr": 0.1}, "lr", "did you mean algorithm.learning_rate?"),
        ({"algorithm": {"name": "ppo", "lr": 1}}, "algorithm.lr", "did you mean algorithm.learning_rate?"),
        ({"num_generations": 8}, "num_generations", "did you mean algorithm.group_size?"),
        # Nearer than group_rewards, which is a setting of the job itself.
        ({"group_sise": 8}, "group_sise", "did you mean algorithm.group_size?"),
        ({"lora_r": 8}, "lora_r", "did you mean adapter.rank?"),
        ({"adapter": {"kind": "lora", "r": 8}}, "adapter.r", "did you mean adapter.rank?"),
        ({"lora_alpha": 8}, "lora_alpha", "did you mean adapter.alpha?"),
        ({"beta": 0.1}, "beta", "did you mean algorithm.kl_coefficient?"),
        ({"batch_size": 8}, "batch_size", "did you mean algorithm.groups_per_step?"),
        ({"max_new_tokens": 8}, "max_new_tokens", "did you mean sampling.max_turn_tokens?"),
        ({"max_steps": 8}, "max_steps", "did you mean steps?"),
        ({"limits": {"job_bytes": 9}}, "limits.job_bytes", "known settings: max_turns"),
        ({"models": "nano"}, "models", "did you mean model?"),
        # A setting that the chosen kind of adapter does not have is not offered at the place where it is.
        ({"adapter": {"kind": "full", "rank": 8}}, "adapter.rank", "known settings: kind"),
        # A part by its name alone.
        ({"adapter": "lora"}, "adapter", "write LoRA(...)"),
        ({"adapter": "peft"}, "adapter", "write LoRA(...) or FullParameters(...)"),
        ({"adapter": LoRA}, "adapter", "write LoRA(...)"),
        ({"algorithm": "grpo"}, "algorithm", "write GRPO(...)"),
        # A loss in the place of an algorithm.
        ({"algorithm": {"name": "gspo"}}, "algorithm.name", "did you mean algorithm.loss='gspo'"),
        ({"algorithm": {"name": "CISPO"}}, "algorithm.name", "did you mean algorithm.loss='cispo'"),
        (
            {"algorithm": {"name": "reinforce"}},
            "algorithm.name",
            "did you mean algorithm.loss='reinforce'",
        ),
        (
            {"algorithm": {"name": "dapo"}},
            "algorithm.name",
            "'dr_grpo'",
        ),
        ({"algorithm": {"name": "grop"}}, "algorithm.name", "did you mean 'grpo'"),
        ({"sampling": 0.7}, "sampling", "write Sampling(...)"),
    ],
)
def test_names_wrong_setting_with_reason_and_what_to_do(settings, field, text):
    error = refusal(**settings)
    assert error.field == field
    assert text in str(error)


@pytest.mark.parametrize(
    ("write", "field", "text"),
    [
        (lambda: GRPO(group_size=1), "GRPO.group_size", "raise group_size or choose"),
        (lambda: GRPO(learning_rat=1.0), "GRPO.learning_rat", "did you mean learning_rate"),
        (lambda: GRPO(lr=1e-3), "GRPO.lr", "did you mean learning_rate?"),
        (lambda: GRPO(num_generations=8), "GRPO.num_generations", "did you mean group_size?"),
        (lambda: GRPO(temperature=0.7), "GRPO.temperature", "known settings: learning_rate"),
        (lambda: FullParameters(rank=8), "FullParameters.rank", "known settings: kind"),
        (lambda: LoRA(rank=True), "LoRA.rank", "must be a number, not True"),
        (lambda: GRPO(learning_rate="1e-3"), "GRPO.learning_rate", "must be a number, not '1e-3'"),
        (lambda: LoRA(rank=0), "LoRA.rank", "greater than or equal to 1"),
        (lambda: Sampling(temperature=math.nan), "Sampling.temperature", "finite"),
        (lambda: JsonSchema(json_schema={"const": "x" * 70_000}), "JsonSchema.json_schema", "simplify it"),
        (lambda: Limits(max_turn=3), "Limits.max_turn", "did you mean max_turns"),
    ],
)
def test_names_wrong_setting_with_the_class_that_a_script_writes(write, field, text):
    with pytest.raises(InvalidRequestError) as caught:
        write()
    assert caught.value.field == field
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        ("sft", "lr", "learning_rate"),
        ("sft", "per_device_train_batch_size", "batch_size"),
        ("sft", "num_train_epochs", "steps"),
        ("sft", "epoch", "steps"),
        ("preference", "beta", "loss.beta"),
    ],
)
def test_translates_name_of_another_library_for_this_kind_of_job(kind, name, meant):
    with pytest.raises(InvalidRequestError, match=rf"did you mean {meant}\?"):
        parse_spec({"kind": kind, "data": "0" * 64, "steps": 1, name: 1})


def test_repeats_only_the_beginning_of_an_unknown_name():
    error = refusal(**{"x" * 100_000: 1})
    assert error.field.startswith("xxx")
    assert len(str(error.to_wire())) < 1000


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"on_failure": "retry"}, "on_failure"),
        ({"on_failure": "retry:0"}, "on_failure"),
        ({"on_failure": "retry:2", "rollout": "script"}, "on_failure"),
        ({"executor": "process", "deterministic": True}, "executor"),
        ({"executor": "process", "rollout": "script"}, "executor"),
        ({"executor": "ray"}, "executor"),
        ({"reasoning": "hide"}, "reasoning"),
    ],
)
def test_rejects_loop_settings_that_could_not_take_effect(settings, field):
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec({"environment": {"id": "a/B-v0"}, "steps": 1, **settings})
    assert caught.value.field == field


def test_refuses_tiny_temperature_in_sample_requests():
    wanted = {"request_id": "r", "policy": "nano", "prompt_ids": [1], "max_tokens": 1}
    for temperature in (0, 0.001, 10):
        SampleRequest(**wanted, temperature=temperature)
    with pytest.raises(InvalidRequestError) as caught:
        parse(SampleRequest, {**wanted, "temperature": 1e-320})
    assert (caught.value.field, caught.value.code) == ("temperature", "too_small")


def test_rejects_temperature_of_zero_in_training_with_the_reason():
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec({"environment": {"id": "a/B-v0"}, "steps": 1, "sampling": {"temperature": 0}})
    assert caught.value.field == "sampling.temperature"


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"initial_policy": "my-sft"}, "initial_policy"),
        ({"initial_policy": "job-1@newest"}, "initial_policy"),
        ({"agents": {"x": {"kind": "train", "initial_policy": "nano"}}}, "agents.x.initial_policy"),
        ({"agents": {"x": {"kind": "frozen", "policy": "nano"}}}, "agents.x.policy"),
        ({"agents": {"train": {"kind": "frozen", "policy": "nano"}}}, "agents.train.policy"),
    ],
)
def test_rejects_non_reference_of_policy_with_how_one_is_written(settings, field):
    error = refusal(**settings)
    assert error.field == field
