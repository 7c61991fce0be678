"""The memory formula against tiny models on a CPU: their tensors are counted, not estimated."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest
import torch

from backend.catalog.models import read_model_facts
from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.learner.causal_lm import CausalLM
from backend.learner.learner import Learner
from backend.planning.memory_needs import (
    ADAPTERS,
    divides_heads,
    engine_needs,
    learner_needs,
    policy_bytes,
)
from backend.planning.model_shape import ModelShape
from backend.settings.served_models import PACKAGED_MODELS
from tests.backend.engines.transformers.answers import ask, complete
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


@pytest.fixture(scope="module")
def learner():
    return Learner(NANO, device="cpu", dtype=torch.float32)


def held_bytes():
    """Return the memory of all tensors in this process."""
    gc.collect()
    tensors = [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


class Held:
    """What policies add to an engine's memory; its cache is there before they are."""

    def __init__(self, **settings):
        self.engine = TransformersEngine(NANO, cache_bytes=1 << 20, max_slots=4, **settings)
        self.sample("", "", "", "")
        self._before = held_bytes()

    def sample(self, *policies):
        version = 1 if policies[0] else 0
        complete(
            self.engine,
            [ask(str(n), [1, 2, 3], policy=p, policy_version=version) for n, p in enumerate(policies)],
        )

    def bytes(self):
        return held_bytes() - self._before


@pytest.mark.parametrize(("merged", "adapters"), [(4, 0), (4, 1), (4, 4), (1, 4), (0, 4), (0, 1)])
def test_predicts_memory_of_adapters_in_engine(learner, merged, adapters):
    names = [f"{merged}-{adapters}-{number}" for number in range(adapters)]
    for name in names:
        learner.create_policy(name, LoRA(rank=16), seed=0)
    held = Held(merged_adapters=merged)
    for name in names:
        held.engine.publish(name, 1, learner.weights(name))
        held.sample(name)  # Alone, and therefore merged if the limit allows it.
    if adapters > 1:
        held.sample(*names)
    found, one = held.bytes(), 4 * SHAPE.adapter_parameters(16)
    held.engine.close()
    missing = (ADAPTERS - adapters) * 2 * one + (one if merged and adapters == 1 else 0)
    expected = policy_bytes(SHAPE, "lora", number_bytes=4, merged=min(merged, adapters)) - missing
    assert found == pytest.approx(expected, rel=0.01, abs=4096)


def test_predicts_memory_of_policy_with_all_parameters_in_engine(learner):
    learner.create_policy("all", FullParameters(), seed=0)
    weights = learner.weights("all")
    held = Held()
    for _ in range(3):
        held.engine.publish("all", 1, weights)
        held.sample("all")
    found, planned = held.bytes(), policy_bytes(SHAPE, "full", number_bytes=4, merged=1)
    held.engine.close()
    assert found == pytest.approx(planned / 2, rel=0.01)
