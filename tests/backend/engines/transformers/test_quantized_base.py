"""Adapters on a base model of 4 or 8 bits: learner and engine compute alike. Needs the extra bitsandbytes."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from backend.compute.supported_models import BYTES_OF
from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.learner.causal_lm import CausalLM
from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence
from backend.learner.token_loss import policy_loss
from backend.planning.memory_needs import base_bytes
from backend.planning.model_shape import ModelShape
from tests.backend.planning.test_memory_needs import NANO, SHAPE
from tinkergym.errors import MissingExtraError
from tinkergym.schema.jobs.parts import LoRA
from tinkergym.schema.sampling import SampleRequest

INSTALLED = importlib.util.find_spec("bitsandbytes") is not None
needs_bitsandbytes = pytest.mark.skipif(not INSTALLED, reason="make test-all PARTS=quantized installs it")
BOUND = {
    ("nf4", "float32"): 1e-4,
    ("nf4", "bfloat16"): 0.3,
    ("int8", "float32"): 0.3,
    ("int8", "bfloat16"): 0.5,
}
"""Nats, as `docs/operating/engines.md` says; for the largest difference of a token in nano."""


def sequence_of(ids, given, logprobs):
    return TrainSequence(
        token_ids=ids,
        loss_mask=[False] * given + [True] * (len(ids) - given),
        sampling_logprobs=[None] * given + list(logprobs),
        advantage=1.0,
    )


def teach(learner, policy, ids):
    for _ in range(10):
        known = learner.logprobs(policy, [sequence_of(ids, 2, [-1.0] * (len(ids) - 2))])[0]
        learner.forward_backward(policy, [sequence_of(ids, 2, known.tolist())], policy_loss())
        learner.optim_step(policy, learning_rate=1e-2)
    return float(known.sum())


@needs_bitsandbytes
@pytest.mark.parametrize(("kind", "dtype"), BOUND)
def test_computes_equal_logprobs_in_learner_and_engine(kind, dtype):
    options = {"dtype": getattr(torch, dtype), "quantized": kind}
    learner = Learner(NANO, **options)
    engine = TransformersEngine(Path(NANO), **options)
    for number, policy in enumerate(("p", "q")):
        learner.create_policy(policy, LoRA(rank=4 + 4 * number), seed=number)
        assert teach(learner, policy, [5, 6, 7 + number, 8, 9, 10]) > -60
        engine.publish(policy, 1, learner.weights(policy))
    rng = np.random.default_rng(0)
    requests = [
        SampleRequest(
            request_id=str(number),
            prompt_ids=rng.integers(5, 900, int(rng.integers(1, 30))).tolist(),
            max_tokens=12,
            policy="pq"[number % 2],
            policy_version=1,
            seed=number,
        )
        for number in range(16)
    ]
    apart = []
    for asked in (requests, requests[:1]):  # Together, and a single row at a time.
        for request, answer in zip(asked, engine.generate_together(asked), strict=True):
            ids = [*request.prompt_ids, *answer.token_ids]
            sequence = sequence_of(ids, len(request.prompt_ids), answer.sampling_logprobs)
            (own,) = learner.logprobs(request.policy, [sequence])
            apart.append(np.abs(own - np.array(answer.sampling_logprobs)).max())
    engine.close()
    assert max(apart) < BOUND[kind, dtype]


@needs_bitsandbytes
@pytest.mark.parametrize("kind", BYTES_OF)
def test_needs_planned_memory_and_stays_close_to_whole_base(kind):
    cpu = torch.device("cpu")
    whole, small = (CausalLM.load(NANO, device=cpu, dtype=torch.float32, quantized=one) for one in ("", kind))
    held = sum(p.numel() * p.element_size() for p in small.model.parameters())
    assert held == pytest.approx(base_bytes(SHAPE, number_bytes=4, quantized=kind), rel=0.06)
    assert small.kept_bytes_per_token() <= SHAPE.layers * SHAPE.kept_bytes(4)
    ids = torch.arange(5, 60)[None]
    with torch.no_grad():
        found, expected = (torch.log_softmax(lm.model(ids).logits, -1) for lm in (small, whole))
    apart = torch.nn.functional.kl_div(found, expected, log_target=True, reduction="batchmean") / 55
    assert float(apart) < 0.3  # nano is tiny: large models lose less


def test_counts_tables_of_tokens_in_the_usual_format():
    shape = ModelShape.of(
        {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000}
    )
    tables = 2 * 64 * 1000
    assert base_bytes(shape, number_bytes=2, quantized="int8") == shape.parameters + tables
    whole, four = (base_bytes(shape, number_bytes=2, quantized=kind) for kind in ("", "nf4"))
    assert whole == 2 * shape.parameters
    assert four == 2 * tables + (shape.parameters - tables) * 9 // 16


@pytest.mark.skipif(INSTALLED, reason="bitsandbytes is installed")
def test_names_missing_package():
    with pytest.raises(MissingExtraError):
        CausalLM.load(NANO, device=torch.device("cpu"), dtype=torch.float32, quantized="nf4")
