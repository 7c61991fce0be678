"""A tiny random Qwen3 on disk, and train batches for it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, Qwen3Config, Qwen3ForCausalLM

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


@pytest.fixture(scope="session")
def smooth_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2: in float64 nothing inside it is rounded to float32, so that differences tell slopes."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=VOCABULARY, n_positions=64, bos_token_id=0)
    )
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter) * 0.1)
    path = tmp_path_factory.mktemp("smooth-model")
    model.save_pretrained(path)
    return path


@pytest.fixture
def assert_slopes_of(smooth_model_dir: Path) -> Callable[..., None]:
    """Compare a gradient at the smooth model's weights with differences of a loss of its logprobs."""

    def compare(
        gradient: dict[str, torch.Tensor],
        batch: list[TrainSequence],
        loss: Callable[[list[torch.Tensor]], torch.Tensor | float],
    ) -> None:
        model = AutoModelForCausalLM.from_pretrained(smooth_model_dir, dtype=torch.float64).eval()
        weights = dict(model.named_parameters())
        assert gradient.keys() == weights.keys()
        origin = {name: weight.detach().clone() for name, weight in weights.items()}
        generator, step = torch.Generator().manual_seed(0), 1e-6

        def moved(by: float, direction: dict[str, torch.Tensor]) -> float:
            with torch.no_grad():
                for name, weight in weights.items():
                    weight.copy_(origin[name] + by * direction[name])
                logprobs = [_sampled_logprobs(model, sequence) for sequence in batch]
            return float(loss(logprobs))

        length = sum(float(tensor.square().sum()) for tensor in gradient.values()) ** 0.5
        assert length > 0
        for _ in range(2):
            direction = {
                name: torch.randn(weight.shape, generator=generator, dtype=torch.float64)
                for name, weight in weights.items()
            }
            slope = (moved(step, direction) - moved(-step, direction)) / (2 * step)
            found = sum(float((gradient[name] * direction[name]).sum()) for name in weights)
            assert found == pytest.approx(slope, abs=2e-5 * length)

    return compare


def _sampled_logprobs(model: GPT2LMHeadModel, sequence: TrainSequence) -> torch.Tensor:
    """By the definition: the token at a place is predicted from the place before it."""
    table = model(input_ids=torch.tensor([sequence.token_ids])).logits[0].log_softmax(-1)
    places = [place for place, sampled in enumerate(sequence.loss_mask) if sampled]
    return torch.stack([table[place - 1, sequence.token_ids[place]] for place in places])


@pytest.fixture(scope="session")
def shared_learner(model_dir: Path) -> Learner:
    return Learner(model_dir)


@pytest.fixture
def learner(shared_learner: Learner) -> Iterator[Learner]:
    """A learner without policies."""
    yield shared_learner
    for policy_id in shared_learner.policy_ids:
        shared_learner.drop(policy_id)


@pytest.fixture(scope="session")
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
