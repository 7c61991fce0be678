"""Policies whose job has ended: what is read from their checkpoint is what the learner had."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma2Config, MixtralConfig

from backend.learner.checkpoints import Checkpoint
from backend.learner.learner import Learner
from backend.policies.stored_weights import stored_weights
from tinkergym.schema.jobs.parts import FullParameters, LoRA

SIZES = {
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
FAMILIES = {
    "tied": lambda: Gemma2Config(**SIZES),
    "experts": lambda: MixtralConfig(**SIZES, num_local_experts=2),
}


@pytest.mark.parametrize("adapter", [FullParameters(), LoRA(rank=2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_stores_weights_with_names_and_bits_of_the_policy(tmp_path, family, dtype, adapter):
    AutoModelForCausalLM.from_config(FAMILIES[family]()).save_pretrained(tmp_path / "model")
    learner = Learner(tmp_path / "model", dtype=dtype)
    learner.create_policy("p", adapter, seed=0)
    learner.save("p", tmp_path / "step-1", step=1, policy_version=1)
    found, expected = stored_weights(Checkpoint.open(tmp_path / "step-1")), learner.weights("p")
    assert found.tensors.keys() == expected.tensors.keys()
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in expected.tensors.items())
