from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from backend.learner.preference_loss import ComparedAnswers, preference_loss
from tinkergym.schema.preference_losses import (
    DPO,
    IPO,
    ORPO,
    PREFERENCE_LOSSES,
    ComparedLogprobs,
    Hinge,
    SimPO,
)


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def by_means(loss, chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
    """The losses of completions of one token."""
    one = f64(1.0)
    pairs = ComparedLogprobs(chosen=chosen, rejected=rejected, chosen_tokens=one, rejected_tokens=one)
    return loss.pair_losses(pairs).losses


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


ANSWERS = ComparedAnswers(
    chosen=np.asarray([-6.0, -9.0, -2.5]),
    rejected=np.asarray([-8.0, -7.0, -2.0]),
    chosen_tokens=np.asarray([3, 4, 2]),
    rejected_tokens=np.asarray([5, 2, 1]),
    reference_chosen=np.asarray([-7.0, -8.5, -2.5]),
    reference_rejected=np.asarray([-7.5, -7.0, -2.25]),
)
"""Margins over the reference: 1.5, -0.5, -0.25."""


def test_matches_golden_vector_dpo():
    # Equation 7 of arXiv:2305.18290, term by term.
    expected = [-log_sigmoid(0.1 * margin) for margin in (1.5, -0.5, -0.25)]
    assert DPO(beta=0.1).of_margins(f64(1.5, -0.5, -0.25)).tolist() == pytest.approx(expected, abs=1e-12)
    assert DPO(beta=0.1).of_margins(f64(0.0)).item() == pytest.approx(math.log(2), abs=1e-12)


def test_matches_golden_vector_conservative_dpo():
    # Equation 3 of Mitchell's note: the two directions, weighed 0.9 and 0.1.
    expected = -0.9 * log_sigmoid(0.15) - 0.1 * log_sigmoid(-0.15)
    found = DPO(beta=0.1, label_smoothing=0.1).of_margins(f64(1.5))
    assert found.item() == pytest.approx(expected, abs=1e-12)


def test_matches_golden_vector_ipo():
    # Equation 17 of arXiv:2310.12036: (h - 1 / (2 tau)) squared, here with 1 / (2 tau) = 5.
    found = IPO(beta=0.1).of_margins(f64(1.5, 5.0, 6.0))
    assert found.tolist() == pytest.approx([12.25, 0.0, 1.0], abs=1e-12)


def test_matches_golden_vector_hinge():
    found = Hinge(beta=0.1).of_margins(f64(1.5, 20.0, -4.0))
    assert found.tolist() == pytest.approx([0.85, 0.0, 1.4], abs=1e-12)


def test_matches_golden_vector_simpo():
    # Equation 6 of arXiv:2405.14734.
    found = by_means(SimPO(beta=2.0, gamma=1.0), f64(-2.0), f64(-1.6))
    assert found.item() == pytest.approx(-log_sigmoid(2.0 * -0.4 - 1.0), abs=1e-12)


def test_matches_golden_vector_orpo():
    # Equations 6 and 7 of arXiv:2403.07691; probabilities 1/2 and 1/4 have odds 1 and 1/3.
    found = by_means(ORPO(odds_weight=0.1), f64(math.log(0.5)), f64(math.log(0.25)))
    assert found.item() == pytest.approx(math.log(2) - 0.1 * log_sigmoid(math.log(3)), abs=1e-12)


def test_stays_finite_in_orpo_for_a_certain_answer():
    assert torch.isfinite(by_means(ORPO(odds_weight=0.1), f64(0.0), f64(-1.0))).all()


def test_averages_pairs_and_counts_chosen_wins():
    result = preference_loss(DPO(beta=0.1), ANSWERS)
    assert result.loss == pytest.approx(
        sum(-log_sigmoid(0.1 * margin) for margin in (1.5, -0.5, -0.25)) / 3, abs=1e-12
    )
    assert result.metrics["accuracy"] == pytest.approx(1 / 3)
    assert result.metrics["reward_margin"] == pytest.approx(0.1 * 0.25)
    assert result.metrics["reward_chosen"] == pytest.approx(0.1 * 0.5 / 3)
    assert result.metrics["logprob_rejected"] == pytest.approx(-17 / 3)


def test_matches_golden_losses_by_mean_logprobs_for_unequal_completions():
    chosen, rejected = np.array([-6 / 3, -9 / 4, -2.5 / 2]), np.array([-8 / 5, -7 / 2, -2.0])
    simpo = preference_loss(SimPO(beta=2.0, gamma=0.5), ANSWERS)
    expected = [-log_sigmoid(2.0 * (c - r) - 0.5) for c, r in zip(chosen, rejected, strict=True)]
    assert simpo.loss == pytest.approx(np.mean(expected), abs=1e-12)
    assert simpo.metrics["reward_margin"] == pytest.approx(2.0 * np.mean(chosen - rejected), abs=1e-12)
    assert simpo.metrics["accuracy"] == pytest.approx(np.mean(chosen > rejected))
    orpo = preference_loss(ORPO(odds_weight=0.3), ANSWERS)
    odds = [np.exp(means) / (1 - np.exp(means)) for means in (chosen, rejected)]
    expected = [
        -mean - 0.3 * log_sigmoid(math.log(won / lost)) for mean, won, lost in zip(chosen, *odds, strict=True)
    ]
    assert orpo.loss == pytest.approx(np.mean(expected), abs=1e-12)
    assert orpo.metrics["reward_rejected"] == pytest.approx(rejected.mean(), abs=1e-12)
    # The derivative by a sum of logprobs: that by their mean, over the answer's own length, over the pairs.
    slopes = 2.0 / (1 + np.exp(2.0 * (chosen - rejected) - 0.5))
    np.testing.assert_allclose(simpo.chosen_weights, slopes / np.array([3, 4, 2]) / 3, atol=1e-12)
    np.testing.assert_allclose(simpo.rejected_weights, -slopes / np.array([5, 2, 1]) / 3, atol=1e-12)


EVERY = [kind() for kind in PREFERENCE_LOSSES.values()]


# Of the second hinge the first pair is beyond, where it is flat.
@pytest.mark.parametrize("loss", [*EVERY, DPO(label_smoothing=0.2), Hinge(beta=5.0)])
def test_weighs_tokens_by_minus_the_slope_of_the_loss(loss):
    result = preference_loss(loss, ANSWERS)
    step = 1e-6
    for name, weights in (("chosen", result.chosen_weights), ("rejected", result.rejected_weights)):
        for pair in range(3):
            sides = []
            for sign in (1, -1):
                moved = getattr(ANSWERS, name).copy()
                moved[pair] += sign * step
                fields = {field: getattr(ANSWERS, field) for field in ANSWERS.__dataclass_fields__}
                sides.append(preference_loss(loss, ComparedAnswers(**{**fields, name: moved})).loss)
            slope = (sides[0] - sides[1]) / (2 * step)
            assert weights[pair] == pytest.approx(-slope, abs=1e-7)


@pytest.mark.parametrize("loss", [DPO(), Hinge(), SimPO(), ORPO()])
def test_makes_chosen_completion_likelier_and_rejected_one_less_likely(loss):
    result = preference_loss(loss, ANSWERS)
    assert (result.chosen_weights > 0).all()
    assert (result.rejected_weights < 0).all()


def test_pulls_back_a_margin_that_went_too_far_in_ipo():
    far = ComparedAnswers(
        chosen=np.asarray([0.0]),
        rejected=np.asarray([-20.0]),
        chosen_tokens=np.asarray([1]),
        rejected_tokens=np.asarray([1]),
        reference_chosen=np.asarray([0.0]),
        reference_rejected=np.asarray([0.0]),
    )
    assert preference_loss(IPO(beta=0.1), far).chosen_weights[0] < 0
