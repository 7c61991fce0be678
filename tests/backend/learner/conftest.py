"""A tiny random Qwen3 on disk, and train batches for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence

VOCABULARY = 61


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _model_in(tmp_path_factory.mktemp("model"), tied=False)


@pytest.fixture(scope="session")
def tied_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _model_in(tmp_path_factory.mktemp("tied-model"), tied=True)


def _model_in(path: Path, *, tied: bool) -> Path:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        attention_dropout=0.5,  # configured, and yet no logprob may feel it
    )
    model = Qwen3ForCausalLM(config)
    for parameter in model.parameters():  # livelier than the usual 0.02, so that errors show
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    model.lm_head.weight.data.mul_(3)  # so that a frozen head can still make a token certain
    model.save_pretrained(path)
    return path


@pytest.fixture
def learner(model_dir: Path) -> Learner:
    return Learner(model_dir)


@pytest.fixture
def make_batch() -> Callable[..., list[TrainSequence]]:
    return _batch


@pytest.fixture
def batch() -> list[TrainSequence]:
    return _batch(seed=0)


def _batch(*, seed: int, groups: int = 3, size: int = 3, temperature: float = 1.0) -> list[TrainSequence]:
    """Two-turn sequences of unequal length; those of a group share their prompt, some also an answer."""
    rng = random.Random(seed)
    sequences = []
    for _ in range(groups):
        prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(2, 9))]
        for member in range(size):
            ids, mask = list(prompt), [False] * len(prompt)
            for turn in range(2):
                answer = [7] if member < 2 and turn == 0 else _drawn(rng, 1, 4)
                ids, mask = ids + answer, mask + [True] * len(answer)
                observation = _drawn(rng, 0, 5)
                ids, mask = ids + observation, mask + [False] * len(observation)
            sequences.append(
                TrainSequence(
                    token_ids=ids,
                    loss_mask=mask,
                    sampling_logprobs=[rng.uniform(-4.5, -3.5) if m else None for m in mask],
                    advantage=rng.gauss(0, 1),
                    temperature=temperature,
                )
            )
    return sequences


def _drawn(rng: random.Random, low: int, high: int) -> list[int]:
    return [rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high))]
