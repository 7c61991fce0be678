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
)

from backend.catalog.models import read_model_facts
from backend.learner.causal_lm import CausalLM
from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence
from tinkergym.errors import InvalidRequestError

CPU = torch.device("cpu")


DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])


def test_rejects_window_told_by_the_configuration_without_a_try(caplog):
    config = MistralConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        sliding_window=64,
    )
    with caplog.at_level(logging.INFO, "backend.learner.capability_probes"):
        lm = CausalLM(MistralForCausalLM._from_config(config, dtype=torch.bfloat16), device=CPU)
    assert not lm.shares_prefixes
    assert "does not have plain attention" in caplog.text


def test_takes_model_that_is_its_own_decoder_whole(make_batch):
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


def test_finds_window_in_the_text_part_of_a_configuration(tmp_path):
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


def test_ends_sequences_before_positions_change_with_the_length(tmp_path):
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
def test_finds_soft_cap_that_small_logits_do_not_reach(dtype):
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
