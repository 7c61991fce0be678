import logging

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from backend.learner.causal_lm import CausalLM
from backend.learner.learner import Learner
from backend.learner.token_loss import policy_loss
from backend.settings.served_models import PACKAGED_MODELS
from tinkergym.schema.jobs.parts import LoRA

CPU = torch.device("cpu")


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])


def nano(dtype):
    return AutoModelForCausalLM.from_pretrained(PACKAGED_MODELS["nano"], dtype=dtype)


def random_qwen(dtype):
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=500,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.1,
    )
    return Qwen2ForCausalLM._from_config(config, dtype=dtype)


def without_positions(given):
    """Each token's position is its place in the row."""
    if given.get("position_ids") is not None:
        given["position_ids"] = torch.arange(given["input_ids"].shape[1])[None]


def within_a_window(given):
    """Each token sees the three before it, which the model's configuration does not tell."""
    length = given["input_ids"].shape[1]
    place = torch.arange(length)
    seen = (place <= place[:, None]) & (place > place[:, None] - 4)
    given["attention_mask"] = seen[None, None]


def changed(model, change):
    def before(_, arguments, given):
        change(given)
        return arguments, given

    model.get_decoder().register_forward_pre_hook(before, with_kwargs=True)
    return model


@DTYPES
@pytest.mark.parametrize("make", [nano, random_qwen])
def test_shares_prompts_in_every_dtype(make, dtype, caplog, said_by):
    with caplog.at_level(logging.INFO, "backend.learner.capability_probes"):
        assert CausalLM(make(dtype), device=CPU).shares_prefixes
    assert not said_by("backend.learner.capability_probes")


@DTYPES
@pytest.mark.parametrize("change", [without_positions, within_a_window])
def test_rejects_model_whose_tokens_would_see_others_and_logs_it(change, dtype, said_by):
    lm = CausalLM(changed(nano(dtype), change), device=CPU)
    assert not lm.shares_prefixes
    assert lm.model.config._attn_implementation == "sdpa"
    (message,) = said_by("backend.learner.capability_probes")
    assert "computed once per sequence" in message and "logprobs differ" in message


def test_computes_per_sequence_a_model_that_fails_on_shared_prompts(caplog):
    def refuse(given):
        if given.get("position_ids") is not None:
            raise TypeError("no positions, please")

    lm = CausalLM(changed(nano(torch.float32), refuse), device=CPU)
    assert not lm.shares_prefixes
    assert lm.model.config._attn_implementation == "sdpa"
    assert "TypeError: no positions, please" in caplog.text


def test_computes_prompt_once_in_bfloat16(batch, model_dir):
    short = Learner(model_dir, dtype=torch.bfloat16)
    short.create_policy("p", LoRA(rank=2), seed=0)
    assert short.forward_backward("p", batch, policy_loss()).metrics["shared_fraction"] > 0
