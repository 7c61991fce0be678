"""Adapters on some of the layers, and how they are scaled: by themselves and beside others on one base."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from backend.compute.weights import AdapterWeights
from backend.learner.learner import Learner
from backend.learner.token_loss import policy_loss
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.jobs.parts import LoRA

QUERIES = LoRA(rank=4, target_modules=["q_proj"])


def paths(learner, policy_id):
    tensors = learner.weights(policy_id).tensors
    return {name.removeprefix("base_model.model.model.").rpartition(".lora_")[0] for name in tensors}


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["q_proj"], {"layers.0.self_attn.q_proj", "layers.1.self_attn.q_proj"}),
        (["layers.1.mlp.*"], {f"layers.1.mlp.{name}_proj" for name in ("gate", "up", "down")}),
        (["[kv]_proj", "layers.0.mlp.up_proj"], None),
        ("*.0.self_attn.o_proj", {"layers.0.self_attn.o_proj"}),
    ],
)
def test_adapts_the_layers_that_patterns_name(model_dir, patterns, expected):
    learner = Learner(model_dir)
    learner.create_policy("p", LoRA(rank=2, target_modules=patterns), seed=0)
    assert paths(learner, "p") == (
        expected
        or {f"layers.{n}.self_attn.{which}_proj" for n in (0, 1) for which in "kv"} | {"layers.0.mlp.up_proj"}
    )


def test_rejects_pattern_that_names_no_layer_and_lists_existing_ones(model_dir):
    learner = Learner(model_dir)
    with pytest.raises(InvalidRequestError) as caught:
        learner.create_policy("p", LoRA(target_modules=["q_proj", "lm_head"]), seed=0)
    assert caught.value.field == "adapter.target_modules"
    assert learner.policy_ids == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_separates_adapters_of_different_layers_on_one_base(model_dir, batch, dtype):
    adapters = {"q": QUERIES, "all": LoRA(rank=3), "mlp": LoRA(rank=2, target_modules="mlp.*")}

    def alone(name):
        learner = Learner(model_dir, dtype=dtype)
        learner.create_policy(name, adapters[name], seed=5)
        return trained(learner, name)

    def trained(learner, name):
        learner.forward_backward(name, batch, policy_loss())
        learner.optim_step(name, learning_rate=2e-2)
        return learner.logprobs(name, batch)

    together = Learner(model_dir, dtype=dtype)
    for name, adapter in adapters.items():
        together.create_policy(name, adapter, seed=5)
    base = together.logprobs(None, batch)
    for name in adapters:
        for own, beside in zip(alone(name), trained(together, name), strict=True):
            assert np.array_equal(own, beside)
    together.drop("all")
    assert all(np.array_equal(a, b) for a, b in zip(base, together.logprobs(None, batch), strict=True))
    assert len(together.logprobs("q", batch)) == len(batch)


def test_scales_rank_stabilized_adapter_by_the_root_of_its_rank():
    tensors = {}
    assert AdapterWeights(rank=16, alpha=8.0, tensors=tensors).scaling == 0.5
    assert AdapterWeights(rank=16, alpha=8.0, rslora=True, tensors=tensors).scaling == 2.0


def test_computes_rank_stabilized_as_with_the_equivalent_alpha(model_dir, batch):
    learner = Learner(model_dir)
    learner.create_policy("stable", LoRA(rank=9, alpha=2.0, rslora=True), seed=1)
    learner.create_policy("plain", LoRA(rank=9, alpha=2.0 * math.sqrt(9)), seed=1)
    found = {}
    for name in ("stable", "plain"):
        learner.forward_backward(name, batch, policy_loss())
        learner.optim_step(name, learning_rate=2e-2)
        found[name] = learner.logprobs(name, batch)
    for stable, plain in zip(found["stable"], found["plain"], strict=True):
        np.testing.assert_allclose(stable, plain, atol=1e-6)


def test_loads_checkpoint_in_peft_and_computes_the_same(model_dir, batch, tmp_path):
    learner = Learner(model_dir)
    adapter = LoRA(rank=4, alpha=6.0, rslora=True, target_modules=["q_proj", "layers.1.mlp.*"])
    learner.create_policy("p", adapter, seed=3)
    learner.forward_backward("p", batch, policy_loss())
    learner.optim_step("p", learning_rate=2e-2)
    learner.save("p", tmp_path / "saved", step=1, policy_version=1)
    base = AutoModelForCausalLM.from_pretrained(model_dir)
    model = PeftModel.from_pretrained(base, tmp_path / "saved").eval()
    sequence = batch[0]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([sequence.token_ids])).logits[0] / sequence.temperature
    places = [place for place, sampled in enumerate(sequence.loss_mask) if sampled]
    expected = [torch.log_softmax(logits[p - 1], -1)[sequence.token_ids[p]].item() for p in places]
    np.testing.assert_allclose(learner.logprobs("p", [sequence])[0], expected, atol=2e-5)

    learner.load("again", tmp_path / "saved", adapter)
    assert np.array_equal(learner.logprobs("again", [sequence])[0], learner.logprobs("p", [sequence])[0])
