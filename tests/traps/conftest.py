"""One tiny model with dropout in its configuration, and a learner and an engine on it.

Each test here is for one way in which a training service can be wrong without an error. Its docstring says
which change to the program makes it fail; each was tried.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from backend.compute.weights import weights_sha256
from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence
from backend.learner.token_loss import policy_loss
from tests.backend.lab import lab, make_lab, warm_site
from tinkergym.schema.jobs.parts import LoRA
from tinkergym.schema.sampling import Completion, SampleRequest

__all__ = ["lab", "make_lab", "warm_site"]

VOCABULARY = 64
ADAPTER = LoRA(rank=4, alpha=12.0)
UNCLIPPED = policy_loss(clip_low=1.0, clip_high=1e6)


def _lively(model):
    with torch.no_grad():
        for parameter in model.parameters():  # the usual 0.02 makes all tokens alike, and errors small
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.fixture(scope="session")
def model_dirs(tmp_path_factory):
    torch.manual_seed(0)
    qwen = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=128,
            tie_word_embeddings=False,
            attention_dropout=0.5,
        )
    )
    gpt2 = GPT2LMHeadModel(
        GPT2Config(
            n_embd=32,
            n_layer=2,
            n_head=4,
            vocab_size=VOCABULARY,
            n_positions=128,
            resid_pdrop=0.5,
            embd_pdrop=0.5,
            attn_pdrop=0.5,
        )
    )
    mistral = MistralForCausalLM(
        MistralConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
            sliding_window=4,
        )
    )
    found = {}
    for name, model in (("qwen3", qwen), ("gpt2", gpt2), ("window", mistral)):
        _lively(model)
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(3)  # so that a frozen head can make a token certain
        found[name] = tmp_path_factory.mktemp(name)
        model.save_pretrained(found[name])
    return found


@pytest.fixture
def model_dir(model_dirs):
    return model_dirs["qwen3"]


@pytest.fixture
def learner(model_dir):
    return Learner(model_dir)


@pytest.fixture
def start_engine(model_dir):
    engines = []

    def start(directory=model_dir, **options):
        engines.append(TransformersEngine(directory, **options))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


class Bench:
    """What tests of learner and engine do over and over."""

    ADAPTER, UNCLIPPED = ADAPTER, UNCLIPPED

    @staticmethod
    def request(name, prompt_ids, *, policy="", version=0, **options):
        settings = {"max_tokens": 6, "seed": sum(name.encode()), **options}
        return SampleRequest(
            request_id=name, policy=policy, policy_version=version, prompt_ids=list(prompt_ids), **settings
        )

    @staticmethod
    def prompt(length, kind=0):
        return [(5 + 11 * kind + 7 * index * (kind + 1)) % VOCABULARY for index in range(length)]

    @staticmethod
    def sequence(request, completion, advantage=0.0):
        assert isinstance(completion, Completion), completion
        return TrainSequence.sampled(
            request, completion, advantage=advantage, temperature=request.temperature or 1.0
        )

    @classmethod
    def batch(cls, seed, sequences=6):
        """Sequences of unequal length, some with a common beginning, with several sampled runs."""
        rng = np.random.default_rng(seed)
        prompts = [rng.integers(0, VOCABULARY, int(rng.integers(2, 9))).tolist() for _ in range(2)]
        found = []
        for number in range(sequences):
            ids, mask = list(prompts[number % 2]), [False] * len(prompts[number % 2])
            for sampled in (True, False, True, False):
                part = rng.integers(0, VOCABULARY, int(rng.integers(1, 5))).tolist()
                ids, mask = ids + part, mask + [sampled] * len(part)
            found.append(
                TrainSequence(
                    token_ids=ids,
                    loss_mask=mask,
                    sampling_logprobs=[float(rng.uniform(-4.5, -3.5)) if m else None for m in mask],
                    advantage=float(rng.normal()),
                )
            )
        return found

    @staticmethod
    def train(learner, policy, batch, *, steps=1, loss=UNCLIPPED, learning_rate=2e-2):
        """Train on policy: with the logprobs that the policy has now."""
        for _ in range(steps):
            known = learner.logprobs(policy, batch)
            fresh = []
            for sequence, logprobs in zip(batch, known, strict=True):
                own = iter(logprobs.tolist())
                fresh.append(
                    replace(
                        sequence, sampling_logprobs=[next(own) if m else None for m in sequence.loss_mask]
                    )
                )
            learner.forward_backward(policy, fresh, loss)
            learner.optim_step(policy, learning_rate=learning_rate)

    @staticmethod
    def gradient(learner, policy, batch, loss=UNCLIPPED, **kwargs):
        """The gradient of a batch alone, and its loss."""
        learner.forget_gradient(policy)
        result = learner.forward_backward(policy, batch, loss, **kwargs)
        found = {name: tensor.clone() for name, tensor in learner.gradient(policy).items()}
        learner.forget_gradient(policy)
        return found, result.loss

    @staticmethod
    def publish(learner, engine, policy, version):
        """Hand the learner's weights to the engine; what arrived is what was sent."""
        weights = learner.weights(policy)
        assert engine.publish(policy, version, weights) == weights_sha256(weights)
        return weights


@pytest.fixture(scope="session")
def bench():
    return Bench
