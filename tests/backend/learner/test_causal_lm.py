import logging

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Llama4ForCausalLM,
    Llama4TextConfig,
    MistralConfig,
    MistralForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from backend.catalog.models import read_model_facts
from backend.config import PACKAGED_MODELS
from backend.learner.causal_lm import CausalLM
from backend.learner.learner import Learner
from backend.learner.losses import LossConfig
from backend.learner.sequences import TrainSequence
from tinkergym.errors import InvalidRequestError, UnknownModelError
from tinkergym.schema.job_spec import LoRA

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
def test_prompts_are_shared_in_every_dtype(make, dtype, caplog):
    with caplog.at_level(logging.INFO, "backend.learner.causal_lm"):
        assert CausalLM(make(dtype), device=CPU).shares_prefixes
    assert not caplog.messages


@DTYPES
@pytest.mark.parametrize("change", [without_positions, within_a_window])
def test_a_model_whose_tokens_would_see_others_is_refused_and_the_log_says_so(change, dtype, caplog):
    lm = CausalLM(changed(nano(dtype), change), device=CPU)
    assert not lm.shares_prefixes
    assert lm.model.config._attn_implementation == "sdpa"
    (message,) = caplog.messages
    assert "computed once per sequence" in message and "logprobs differ" in message


def test_a_window_that_the_configuration_tells_is_refused_without_a_try(caplog):
    config = MistralConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        sliding_window=64,
    )
    with caplog.at_level(logging.INFO, "backend.learner.causal_lm"):
        lm = CausalLM(MistralForCausalLM._from_config(config, dtype=torch.bfloat16), device=CPU)
    assert not lm.shares_prefixes
    assert "not plain attention" in caplog.text


def test_a_model_that_fails_on_shared_prompts_is_computed_once_per_sequence(caplog):
    def refuse(given):
        if given.get("position_ids") is not None:
            raise TypeError("no positions, please")

    lm = CausalLM(changed(nano(torch.float32), refuse), device=CPU)
    assert not lm.shares_prefixes
    assert lm.model.config._attn_implementation == "sdpa"
    assert "TypeError: no positions, please" in caplog.text


def test_a_model_that_is_its_own_decoder_is_taken_whole(make_batch):
    torch.manual_seed(0)
    config = Llama4TextConfig(
        vocab_size=61,
        hidden_size=16,
        intermediate_size=16,
        intermediate_size_mlp=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=2,
        pad_token_id=0,
    )
    lm = CausalLM(Llama4ForCausalLM(config), device=CPU)
    assert not lm.splits_head
    ((micro_batch,), *_) = lm.batches(make_batch(seed=0), max_tokens=1000)
    features, states = lm.features_and_states(micro_batch)
    torch.testing.assert_close(lm.output_head(states), features)


def test_a_prompt_is_computed_once_in_bfloat16(batch, model_dir):
    short = Learner(model_dir, dtype=torch.bfloat16)
    short.create_policy("p", LoRA(rank=2), seed=0)
    assert short.forward_backward("p", batch, LossConfig()).metrics["shared_fraction"] > 0


def test_a_window_in_the_text_part_of_a_configuration_is_seen(tmp_path):
    torch.manual_seed(0)
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {"vocab_size": 97, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64}
    text |= {"sliding_window": 20, "layer_types": ["sliding_attention"], "initializer_range": 0.2}
    config = Gemma3Config(
        text_config=small | text,
        vision_config=small | {"image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
        boi_token_index=90,
        eoi_token_index=91,
        image_token_index=92,
    )
    Gemma3ForConditionalGeneration(config).save_pretrained(tmp_path)
    learner = Learner(tmp_path)
    assert learner.limits.context_length == 64
    ids = [7 * n % 90 for n in range(60)]
    blank = [0.0] * len(ids)
    asked = TrainSequence(token_ids=ids, loss_mask=[False, *[True] * 59], sampling_logprobs=blank)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.no_grad():
        table = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    expected = table[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    found = torch.from_numpy(learner.logprobs(None, [asked])[0]).float()
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_where_positions_change_with_the_length_sequences_end_before_they_do(tmp_path):
    """Beyond it a token's logprob would depend on the longest sequence of its micro-batch."""
    config = Phi3Config(
        vocab_size=60,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=128,
        original_max_position_embeddings=32,
        pad_token_id=0,
        initializer_range=0.2,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0] * 4,
            "long_factor": [2.0, 3.0, 4.0, 5.0],
        },
    )
    torch.manual_seed(0)
    Phi3ForCausalLM(config).save_pretrained(tmp_path)
    learner = Learner(tmp_path)
    assert learner.limits.context_length == read_model_facts(tmp_path).context_length == 32

    def sequence(length):
        ids = [1 + 7 * n % 59 for n in range(length)]
        mask = [False, *[True] * (length - 1)]
        return TrainSequence(token_ids=ids, loss_mask=mask, sampling_logprobs=[0.0] * length)

    (alone,) = learner.logprobs(None, [sequence(20)])
    with pytest.raises(InvalidRequestError) as caught:
        learner.logprobs(None, [sequence(20), sequence(33)])
    assert caught.value.field == "token_ids"
    beside, _ = learner.logprobs(None, [sequence(20), sequence(32)])
    np.testing.assert_allclose(beside, alone, atol=1e-5)


@DTYPES
def test_a_soft_cap_that_small_logits_do_not_reach_is_seen(dtype):
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
    )
    assert not CausalLM(Gemma2ForCausalLM._from_config(config, dtype=dtype), device=CPU).splits_head
    config.final_logit_softcapping = None
    assert CausalLM(Gemma2ForCausalLM._from_config(config, dtype=dtype), device=CPU).splits_head


@pytest.mark.parametrize("fault", ["no head", "another shape"])
def test_weights_that_are_not_all_there_or_of_another_shape_are_refused(fault, tmp_path):
    model = nano(torch.float32)
    weights = dict(model.state_dict())
    if fault == "no head":
        del weights["lm_head.weight"]
    else:
        weights["model.layers.0.mlp.up_proj.weight"] = torch.zeros(3, 5)
    model.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(UnknownModelError) as caught:
        CausalLM.load(tmp_path, device=CPU, dtype=torch.float32)
    assert caught.value.field == "model"
    assert ("lm_head.weight" if fault == "no head" else "up_proj") in caught.value.message
