"""The files that hand a policy to vLLM."""

from __future__ import annotations

import torch
from safetensors.torch import load_file, save_file

from backend.rollout.engines.vllm_files import misfit, model_shapes, read_tensors, write_policy
from backend.weights import FullWeights, weights_sha256


def test_vllm_reads_of_tied_weights_only_the_name_that_the_model_has_in_its_files(tmp_path):
    embedding, norm = torch.ones(4, 2), torch.ones(2)
    held = {"model.embed_tokens.weight": embedding, "model.norm.weight": norm}
    save_file(held, tmp_path / "model.safetensors")
    shapes = model_shapes(tmp_path)
    weights = FullWeights(tensors={**held, "lm_head.weight": embedding})
    assert misfit(weights, shapes) is None
    write_policy(tmp_path / "policy", weights, shapes)
    assert load_file(tmp_path / "policy" / "model.safetensors").keys() == held.keys()
    assert weights_sha256(FullWeights(tensors=read_tensors(tmp_path / "policy"))) == weights_sha256(weights)


def test_names_that_the_files_hold_without_their_first_part_are_read(tmp_path):
    wte = torch.ones(4, 2)
    write_policy(
        tmp_path / "policy",
        FullWeights(tensors={"transformer.wte.weight": wte, "lm_head.weight": wte}),
        {"wte.weight": (4, 2)},
    )
    assert load_file(tmp_path / "policy" / "model.safetensors").keys() == {"transformer.wte.weight"}
