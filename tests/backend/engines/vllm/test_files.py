"""The files that hand a policy to vLLM."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    GptOssConfig,
    MixtralConfig,
    Qwen2MoeConfig,
    Qwen3Config,
    Qwen3MoeConfig,
)

from backend.catalog.models import read_model_facts
from backend.compute.weights import AdapterWeights, FullWeights
from backend.engines.vllm.files import (
    as_in_files,
    lora_targets,
    misfit,
    model_shapes,
    names_to_load,
    read_adapter,
    write_nothing,
)

LAYER = "model.layers.0."
SHAPES = {
    "model.embed_tokens.weight": (64, 32),
    f"{LAYER}input_layernorm.weight": (32,),
    f"{LAYER}self_attn.q_proj.weight": (32, 32),
    f"{LAYER}mlp.down_proj.weight": (32, 48),
    "lm_head.weight": (64, 32),
}


def test_tells_vllm_which_layers_adapters_change_beside_experts():
    assert lora_targets(SHAPES) is None
    mixture = {
        "model.layers.1.mlp.experts.0.w1.weight": (16, 32),
        "model.layers.1.mlp.gate.weight": (4, 32),
        "model.layers.1.mlp.shared_expert_gate.weight": (1, 32),
        "model.layers.1.mlp.shared_expert.up_proj.weight": (16, 32),
    }
    assert lora_targets(SHAPES | mixture) == ["down_proj", "q_proj", "up_proj"]
    fused = {
        "model.layers.1.mlp.experts.gate_up_proj": (4, 32, 32),
        "model.layers.1.mlp.router.weight": (4, 32),
    }
    assert lora_targets(SHAPES | fused) == ["down_proj", "q_proj"]


@pytest.mark.parametrize(
    ("config", "more", "expected"),
    [
        (Qwen3Config, {}, False),
        (MixtralConfig, {"num_local_experts": 2}, True),
        (GptOssConfig, {"num_local_experts": 2, "num_experts_per_tok": 1}, True),
        (Qwen2MoeConfig, {"num_experts": 2, "num_experts_per_tok": 1}, True),
        (Qwen3MoeConfig, {"num_experts": 2, "num_experts_per_tok": 1}, True),
        (DeepseekV3Config, {"n_routed_experts": 8, "n_group": 1, "topk_group": 1}, True),
    ],
)
def test_knows_mixture_of_experts_by_its_files_as_engine_does(tmp_path, config, more, expected):
    sizes = {"vocab_size": 61, "hidden_size": 16, "intermediate_size": 24, "moe_intermediate_size": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 4}
    AutoModelForCausalLM.from_config(config(**sizes, **heads, **more)).save_pretrained(tmp_path)
    assert read_model_facts(tmp_path).has_experts is expected
    assert (lora_targets(model_shapes(tmp_path)) is not None) is expected


def test_sends_for_tied_weights_only_the_name_in_the_files(tmp_path):
    embedding, norm = torch.ones(4, 2), torch.ones(2)
    held = {"model.embed_tokens.weight": embedding, "model.norm.weight": norm}
    save_file(held, tmp_path / "model.safetensors")
    shapes = model_shapes(tmp_path)
    weights = FullWeights(tensors={**held, "lm_head.weight": embedding})
    assert misfit(weights, shapes) is None
    assert names_to_load(weights, shapes) == list(held)


def test_reads_names_that_the_files_hold_without_first_part():
    wte = torch.ones(4, 2)
    weights = FullWeights(tensors={"transformer.wte.weight": wte, "lm_head.weight": wte})
    assert names_to_load(weights, {"wte.weight": (4, 2)}) == ["transformer.wte.weight"]


def test_hands_fused_experts_over_one_by_one(tmp_path):
    config = MixtralConfig(
        vocab_size=61,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_local_experts=2,
    )
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    shapes = model_shapes(tmp_path)
    weights = FullWeights(tensors={name: p.detach() for name, p in model.named_parameters()})
    assert misfit(weights, shapes) is not None
    found = as_in_files(weights, tmp_path, shapes)
    assert misfit(found, shapes) is None
    expected = load_file(tmp_path / "model.safetensors")
    assert found.tensors.keys() == expected.keys()
    assert all(torch.equal(found.tensors[name], tensor) for name, tensor in expected.items())
    strange = FullWeights(tensors={"some.weight": torch.ones(2)})
    assert misfit(as_in_files(strange, tmp_path, shapes), shapes) is not None


@pytest.mark.parametrize(
    ("more", "strange"),
    [
        ({}, None),
        ({"lm_head.weight": torch.ones(4, 2)}, None),
        ({"lm_head.weight": torch.zeros(4, 2)}, "lm_head.weight"),
        ({"model.layers.9.extra.weight": torch.ones(3)}, "model.layers.9.extra.weight"),
        ({"x.model.norm.weight": torch.ones(2)}, "x.model.norm.weight"),
    ],
    ids=["as the files", "a copy of a tied one", "another head", "one too many", "one twice"],
)
def test_rejects_full_weights_that_vllm_would_skip(more, strange):
    held = {"model.embed_tokens.weight": torch.ones(4, 2), "model.norm.weight": torch.full((2,), 3.0)}
    shapes = {name: tuple(tensor.shape) for name, tensor in held.items()}
    assert misfit(FullWeights(tensors=held | more), shapes) == strange


def test_fits_an_empty_adapter_wherever_another_fits(tmp_path):
    sides = {"A": torch.ones(4, 32), "B": torch.ones(32, 4)}
    names = {side: f"base_model.model.{LAYER}self_attn.q_proj.lora_{side}.weight" for side in sides}
    like = AdapterWeights(rank=4, alpha=8.0, tensors={names[side]: sides[side] for side in sides})
    write_nothing(tmp_path / "nothing", like)
    tensors = read_adapter(tmp_path / "nothing")
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {
        names["A"]: (1, 32),
        names["B"]: (32, 1),
    }
    assert not any(tensor.any() for tensor in tensors.values())
    assert misfit(AdapterWeights(rank=1, alpha=1.0, tensors=tensors), SHAPES) is None
