from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch

from backend.engines.token_sampling import choose_tokens, cut_logprobs, uniforms

GOLDEN = [0.8833108082136426, 0.5957679321666499, 0.8747953691128321, 0.5452272270305447]


def test_derives_a_uniform_from_seed_and_position_only():
    seeds, positions = [0, 1, 2**64 - 1, 7], [0, 5, 9, 2**40]
    together = uniforms(seeds, positions)
    alone = [uniforms([seed], [position])[0] for seed, position in zip(seeds, positions, strict=True)]
    assert together.tolist() == alone
    # Written down once: a change would break the promise that a seed gives the same episode tomorrow.
    assert together.tolist() == pytest.approx(GOLDEN, abs=0)


def test_spreads_uniforms_evenly_without_shifted_streams():
    numbers = uniforms(list(range(2000)) * 5, [p for p in range(5) for _ in range(2000)])
    assert numbers.min() >= 0 and numbers.max() < 1
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    # 99.9 % quantile of chi-square with 19 degrees of freedom.
    assert ((counts - 500) ** 2 / 500).sum() < 43.8
    assert len(set(numbers.tolist())) == len(numbers)


def test_follows_the_distribution_at_the_temperature():
    logits = torch.tensor([0.0, 1.0, 2.0, -30.0])
    count = 4000
    tokens, logprobs = choose_tokens(logits.repeat(count, 1), [0.5] * count, list(range(count)), [3] * count)
    expected = torch.softmax(logits / 0.5, -1)
    frequencies = torch.bincount(torch.tensor(tokens), minlength=4) / count
    assert torch.allclose(frequencies, expected, atol=0.03)
    assert logprobs == pytest.approx([math.log(expected[token]) for token in tokens], abs=1e-6)


def test_chooses_greedily_at_temperature_zero_with_logprobs_of_one():
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 1.0]])
    tokens, logprobs = choose_tokens(logits, [0.0, 0.0], [1, 2], [0, 0])
    assert tokens == [1, 0]
    assert logprobs == pytest.approx(torch.log_softmax(logits, -1)[[0, 1], tokens].tolist())


@pytest.mark.parametrize("size", [1, 2, 3, 6, 61, 1024, 5003])
def test_takes_token_where_cumulated_probability_passes_the_number(size):
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


def test_never_chooses_a_token_without_probability():
    logits = torch.full((500, 6), float("-inf"))
    logits[:, 2] = 0.0
    tokens, _ = choose_tokens(logits, [1.0] * 500, list(range(500)), [0] * 500)
    assert set(tokens) == {2}


def test_gives_nan_to_rows_without_finite_distribution_only():
    logits = torch.zeros(2, 4)
    logits[0, 1] = float("nan")
    _, logprobs = choose_tokens(logits, [1.0, 1.0], [1, 2], [0, 0])
    assert math.isnan(logprobs[0])
    assert logprobs[1] == pytest.approx(math.log(0.25))


class Cut(NamedTuple):
    top_k: int = 0
    top_p: float = 1.0


CUTS = [Cut(1), Cut(3), Cut(0, 0.5), Cut(7, 0.9), Cut(0, 1e-9), Cut(1500, 0.7), Cut(1500), Cut(10**9, 0.999)]


def left_by(cut, logits):
    """The ids that a cut leaves of [V] logits, likeliest first, one by one."""
    probabilities = torch.softmax(logits.double(), -1).tolist()
    ids = sorted(range(len(logits)), key=lambda token: (-probabilities[token], token))
    ids = ids[: cut.top_k] if cut.top_k else ids
    whole, sum_, left = sum(probabilities[token] for token in ids), 0.0, []
    for token in ids:
        left.append(token)
        sum_ += probabilities[token]
        if cut.top_p < 1 and sum_ >= cut.top_p * whole:
            break
    return left


@pytest.mark.parametrize("size", [1, 5, 1024, 5003])
@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_cuts_rows_by_top_k_and_then_top_p(size, spread):
    """More tokens may be left than are sorted at first, by `top_k`, by `top_p` and by both."""
    logits = torch.randn(len(CUTS), size, generator=torch.Generator().manual_seed(size)) * spread
    logprobs = torch.log_softmax(logits, -1)
    cut_logprobs(logprobs, dict(enumerate(CUTS)))
    for row, found, cut in zip(logits, logprobs, CUTS, strict=True):
        left = found.isfinite().nonzero()[:, 0].tolist()
        # Whether the token at the border is in may turn on the last bit of a sum.
        assert len(set(left) ^ set(left_by(cut, row))) <= (1 if cut.top_p < 1 else 0)
        assert torch.allclose(found[left], torch.log_softmax(row[left], -1), atol=2e-5)


def test_keeps_lower_ids_of_equally_likely_tokens():
    logprobs = torch.log_softmax(torch.tensor([[0.0, 2.0, 1.0, 1.0, 1.0, 2.0]]).repeat(4, 1), -1)
    cut_logprobs(logprobs, dict(enumerate([Cut(1), Cut(3), Cut(4), Cut(0, 0.7)])))
    left = [row.isfinite().nonzero()[:, 0].tolist() for row in logprobs]
    assert left == [[1], [1, 2, 5], [1, 2, 3, 5], [1, 2, 5]]


def test_follows_what_is_left_of_the_distribution():
    logits, count = torch.tensor([0.0, 1.0, 2.0, 1.5, -1.0]), 4000
    cuts = dict.fromkeys(range(count), Cut(2))
    tokens, logprobs = choose_tokens(
        logits.repeat(count, 1), [0.5] * count, list(range(count)), [3] * count, cuts
    )
    expected = torch.softmax(logits[2:4] / 0.5, -1)
    frequencies = torch.bincount(torch.tensor(tokens), minlength=5) / count
    assert frequencies[[0, 1, 4]].tolist() == [0, 0, 0]
    assert torch.allclose(frequencies[2:4], expected, atol=0.03)
    assert logprobs == pytest.approx([math.log(expected[token - 2]) for token in tokens], abs=1e-6)


def test_keeps_bits_of_uncut_rows_beside_cut_ones():
    rows = 60
    logits = torch.randn(rows, 997, generator=torch.Generator().manual_seed(3)) * 2
    temperatures = [(0.0, 0.7, 1.0)[row % 3] for row in range(rows)]
    drawing = (logits, temperatures, list(range(rows)), [5] * rows)
    plain = choose_tokens(*drawing)
    # Those of temperature 0 are not cut either.
    cuts = {row: Cut(2, 0.5) for row in range(rows) if row % 2 or temperatures[row] == 0.0}
    found = choose_tokens(*drawing, cuts)
    free = [row for row in range(rows) if row not in cuts or temperatures[row] == 0.0]
    for before, after in zip(plain, found, strict=True):
        assert [before[row] for row in free] == [after[row] for row in free]
    assert plain[1] != found[1]
    assert choose_tokens(*drawing, {}) == plain


def test_draws_the_same_when_cut_leaves_all_tokens():
    rows = 300
    logits = torch.randn(rows, 400, generator=torch.Generator().manual_seed(4))
    drawing = (logits, [1.0] * rows, list(range(rows)), [5] * rows)
    plain, _ = choose_tokens(*drawing)
    found, _ = choose_tokens(*drawing, dict.fromkeys(range(rows), Cut(400, 0.99999999)))
    assert found == plain


def test_gives_nan_to_cut_row_without_finite_distribution_too():
    logits = torch.zeros(3, 4)
    logits[0, 1] = float("nan")
    logits[1] = float("-inf")
    _, logprobs = choose_tokens(logits, [1.0] * 3, [1] * 3, [0] * 3, dict.fromkeys(range(3), Cut(2, 0.9)))
    assert [math.isnan(logprob) for logprob in logprobs] == [True, True, False]
