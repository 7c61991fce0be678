"""The memory formula against tiny models on a CPU: their tensors are counted, not estimated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from backend.catalog.models import read_model_facts
from backend.learner.causal_lm import CausalLM
from backend.learner.learner import Learner
from backend.planning.memory_needs import ADAPTERS, divides_heads, engine_needs, learner_needs
from backend.planning.model_shape import ModelShape
from backend.settings.served_models import PACKAGED_MODELS
from tests.backend.planning.shapes import SHAPES
from tinkergym.schema.jobs.parts import FullParameters, LoRA

NANO = Path(PACKAGED_MODELS["nano"])
SHAPE = ModelShape.of(json.loads((NANO / "config.json").read_text()))
CPU = torch.device("cpu")


def test_counts_parameters_of_model_from_its_configuration():
    assert SHAPE.parameters == pytest.approx(read_model_facts(NANO).parameters, rel=0.001)
    assert ModelShape.of({"model_type": "unknown"}) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_predicts_activations_that_learner_measures(dtype):
    lm = CausalLM.load(NANO, device=CPU, dtype=dtype)
    expected = SHAPE.layers * SHAPE.kept_bytes(dtype.itemsize)
    assert expected == pytest.approx(lm.kept_bytes_per_token(), rel=0.25)


@pytest.mark.parametrize("adapter", [LoRA(rank=16), FullParameters()])
def test_predicts_numbers_that_a_policy_trains(adapter):
    learner = Learner(NANO, device="cpu", dtype=torch.float32)
    learner.create_policy("p", adapter, seed=0)
    trained = sum(tensor.numel() for tensor in learner.weights("p").tensors.values())
    one = SHAPE.adapter_parameters(16) if isinstance(adapter, LoRA) else SHAPE.parameters
    assert trained == pytest.approx(one, rel=0.001)


def test_counts_weight_gradient_and_moments_of_what_is_trained():
    none = learner_needs(SHAPE, "lora", number_bytes=4).resident - 16 * ADAPTERS * SHAPE.adapter_parameters(
        16
    )
    full = learner_needs(SHAPE, "full", number_bytes=4).resident
    assert full - none == 16 * SHAPE.parameters
    half = learner_needs(SHAPES["7B"], "full", number_bytes=2, divided_by=8)
    assert half.resident < learner_needs(SHAPES["7B"], "full", number_bytes=2).resident / 2


def test_divides_an_engine_over_its_gpus():
    one, four = (engine_needs(SHAPES["7B"], number_bytes=2, tensor_parallel=size) for size in (1, 4))
    assert four.cache == one.cache // 4
    assert four.weights < one.weights / 3
    assert [size for size in (1, 2, 3, 4, 7, 8) if divides_heads(SHAPES["7B"], size)] == [1, 2, 4]
