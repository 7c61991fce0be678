from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from backend.rollout.engines.token_sampling import choose_tokens, uniforms

GOLDEN = [0.8833108082136426, 0.5957679321666499, 0.8747953691128321, 0.5452272270305447]


def test_a_uniform_depends_on_its_seed_and_position_only():
    seeds, positions = [0, 1, 2**64 - 1, 7], [0, 5, 9, 2**40]
    together = uniforms(seeds, positions)
    alone = [uniforms([seed], [position])[0] for seed, position in zip(seeds, positions, strict=True)]
    assert together.tolist() == alone
    # Written down once: a change would break the promise that a seed gives the same episode tomorrow.
    assert together.tolist() == pytest.approx(GOLDEN, abs=0)


def test_uniforms_are_spread_evenly_and_streams_are_not_shifted_copies():
    numbers = uniforms(list(range(2000)) * 5, [p for p in range(5) for _ in range(2000)])
    assert numbers.min() >= 0 and numbers.max() < 1
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    # 99.9 % quantile of chi-square with 19 degrees of freedom.
    assert ((counts - 500) ** 2 / 500).sum() < 43.8
    assert len(set(numbers.tolist())) == len(numbers)


def test_tokens_follow_the_distribution_at_the_temperature():
    logits = torch.tensor([0.0, 1.0, 2.0, -30.0])
    count = 4000
    tokens, logprobs = choose_tokens(logits.repeat(count, 1), [0.5] * count, list(range(count)), [3] * count)
    expected = torch.softmax(logits / 0.5, -1)
    frequencies = torch.bincount(torch.tensor(tokens), minlength=4) / count
    assert torch.allclose(frequencies, expected, atol=0.03)
    assert logprobs == pytest.approx([math.log(expected[token]) for token in tokens], abs=1e-6)


def test_temperature_zero_is_greedy_with_logprobs_of_temperature_one():
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 1.0]])
    tokens, logprobs = choose_tokens(logits, [0.0, 0.0], [1, 2], [0, 0])
    assert tokens == [1, 0]
    assert logprobs == pytest.approx(torch.log_softmax(logits, -1)[[0, 1], tokens].tolist())


@pytest.mark.parametrize("size", [1, 2, 3, 6, 61, 1024, 5003])
def test_the_token_is_where_the_cumulated_probability_passes_the_number(size):
    rows = 200
    logits = torch.randn(rows, size, generator=torch.Generator().manual_seed(size)) * 3
    logits[:, size // 2 :: 3] = float("-inf")
    logits[:, -1] = 0.0
    tokens, _ = choose_tokens(logits, [1.0] * rows, list(range(rows)), [4] * rows)
    cumulated = np.exp(torch.log_softmax(logits, -1).double().numpy()).cumsum(-1)
    numbers = uniforms(list(range(rows)), [4] * rows) * cumulated[:, -1]
    for token, row, number in zip(tokens, cumulated, numbers, strict=True):
        assert row[token] > number - 1e-6
        assert token == 0 or row[token - 1] < number + 1e-6


def test_a_token_without_probability_is_never_chosen():
    logits = torch.full((500, 6), float("-inf"))
    logits[:, 2] = 0.0
    tokens, _ = choose_tokens(logits, [1.0] * 500, list(range(500)), [0] * 500)
    assert set(tokens) == {2}


def test_a_row_without_a_finite_distribution_gets_nan_and_leaves_the_others_alone():
    logits = torch.zeros(2, 4)
    logits[0, 1] = float("nan")
    _, logprobs = choose_tokens(logits, [1.0, 1.0], [1, 2], [0, 0])
    assert math.isnan(logprobs[0])
    assert logprobs[1] == pytest.approx(math.log(0.25))
