import dataclasses
import math

import numpy as np
import pytest
import torch

from backend.learner.learner import Learner
from backend.learner.preference_loss import ComparedAnswers, preference_loss, sums
from backend.learner.sequences import BatchTotals
from backend.learner.token_loss import likelihood_loss
from tinkergym.errors import ConflictError, InvalidRequestError
from tinkergym.policy_losses import LossTokens
from tinkergym.schema.jobs.parts import FullParameters, LoRA
from tinkergym.schema.preference_losses import DPO, ORPO, SimPO

AGGREGATIONS = pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def written(batch, weights=None):
    """The batch as texts that somebody wrote, each with its weight or 1."""
    weights = [1.0] * len(batch) if weights is None else weights
    return [
        dataclasses.replace(s, sampling_logprobs=[0.0] * len(s.token_ids), advantage=weight)
        for s, weight in zip(batch, weights, strict=True)
    ]


def gradient(learner, batch, loss=likelihood_loss(), **kwargs):  # noqa: B008 - frozen
    result = learner.forward_backward("p", batch, loss, **kwargs)
    found = {name: tensor.clone() for name, tensor in learner.gradient("p").items()}
    learner.forget_gradient("p")
    return found, result


def assert_close(found, expected):
    scale = max(float(tensor.abs().max()) for tensor in expected.values())
    assert scale > 0
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=2e-6 * max(scale, 1.0), rtol=2e-4)


# --- the function ----------------------------------------------------------------------------------------


def weighted_likelihood(logprobs, weights):
    tokens = LossTokens(learner_logprobs=logprobs, sampling_logprobs=logprobs, advantages=weights)
    return likelihood_loss().token_losses(tokens).losses


def test_matches_golden_values():
    # Tokens that the policy gives 1/2, 1/4, 1/8 and 1: their surprise is 1, 2, 3 and 0 bits.
    logprobs = f64(0.5, 0.25, 0.125, 1.0).log()
    bits = weighted_likelihood(logprobs, f64(1.0, 1.0, 1.0, 1.0)) / math.log(2)
    assert bits.tolist() == pytest.approx([1.0, 2.0, 3.0, 0.0])
    bits = weighted_likelihood(logprobs, f64(0.5, -1.0, 0.0, 7.0)) / math.log(2)
    assert bits.tolist() == pytest.approx([0.5, -2.0, 0.0, 0.0])


def test_has_gradient_of_finite_differences():
    generator = torch.Generator().manual_seed(0)
    logprobs, weights = (torch.randn(20, generator=generator, dtype=torch.float64) for _ in range(2))
    assert torch.autograd.gradcheck(lambda x: weighted_likelihood(x, weights), logprobs.requires_grad_())


def test_weighs_by_advantages_though_nothing_was_sampled():
    tokens = LossTokens(
        learner_logprobs=f64(-1.0, -3.0),
        sampling_logprobs=f64(math.nan, -math.inf),
        advantages=f64(2.0, -0.5),
    )
    found = likelihood_loss().token_losses(tokens)
    assert found.losses.tolist() == [2.0, -1.5]
    assert not found.shares and not found.largest


# --- through the learner ---------------------------------------------------------------------------------


@AGGREGATIONS
def test_has_learners_gradient_of_finite_differences(smooth_model_dir, assert_slopes_of, batch, aggregation):
    batch = written(batch)
    learner = Learner(smooth_model_dir)
    learner.create_policy("p", FullParameters(), seed=0)
    loss = likelihood_loss(aggregation=aggregation, constant_tokens=10)
    found, result = gradient(learner, batch, loss)

    def cross_entropy(logprobs):
        every = torch.cat(logprobs)
        return -{
            "token": every.mean(),
            "sequence": torch.stack([own.mean() for own in logprobs]).mean(),
            "constant": every.sum() / (10 * len(logprobs)),
        }[aggregation]

    assert_slopes_of(found, batch, cross_entropy)
    own = [torch.from_numpy(logprobs) for logprobs in result.learner_logprobs]
    assert result.loss == pytest.approx(float(cross_entropy(own)), rel=1e-6)


@pytest.mark.parametrize("kind", [DPO(beta=0.5), SimPO(), ORPO(odds_weight=0.7)], ids=lambda kind: kind.name)
def test_has_preferences_gradient_when_weighted_with_its_slopes(
    smooth_model_dir, assert_slopes_of, make_batch, kind
):
    """Each answer is all sampled tokens of a sequence; a pair's stand side by side."""
    batch = make_batch(seed=4, groups=2, size=4)
    learner = Learner(smooth_model_dir)
    learner.create_policy("p", FullParameters(), seed=0)
    counts = np.asarray([sum(s.loss_mask) for s in batch])
    reference = sums(learner.logprobs(None, batch)) + np.linspace(-2.0, 2.0, len(batch))

    def compared(logprobs):
        return preference_loss(
            kind,
            ComparedAnswers(
                chosen=logprobs[0::2],
                rejected=logprobs[1::2],
                chosen_tokens=counts[0::2],
                rejected_tokens=counts[1::2],
                reference_chosen=reference[0::2],
                reference_rejected=reference[1::2],
            ),
        )

    slopes = compared(sums(learner.logprobs("p", batch)))
    weights = np.stack([slopes.chosen_weights, slopes.rejected_weights], axis=1).reshape(-1)
    found, _ = gradient(learner, written(batch, weights.tolist()), totals=BatchTotals(tokens=1, sequences=1))
    assert_slopes_of(found, batch, lambda logprobs: compared(sums([own.numpy() for own in logprobs])).loss)


def test_learns_only_marked_tokens_and_skips_what_follows_the_last(learner, batch):
    learner.create_policy("p", FullParameters(), seed=0)
    expected, result = gradient(learner, written(batch))
    longer = [
        dataclasses.replace(
            s,
            token_ids=[*s.token_ids, 5, 9],
            loss_mask=[*s.loss_mask, False, False],
            sampling_logprobs=[*s.sampling_logprobs, 0.0, 0.0],
            advantage=[*(1.0 if m else math.nan for m in s.loss_mask), math.nan, math.nan],
        )
        for s in written(batch)
    ]
    found, of_longer = gradient(learner, longer)
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert of_longer.loss == result.loss


def test_counts_text_of_weight_zero_in_mean_without_pull(learner, batch):
    learner.create_policy("p", LoRA(rank=4), seed=0)
    weights = [0.0 if number % 3 == 0 else 1.0 for number in range(len(batch))]
    found, result = gradient(learner, written(batch, weights))
    kept = [s for s, weight in zip(batch, weights, strict=True) if weight]
    expected, of_kept = gradient(learner, written(kept), totals=BatchTotals.of(batch))
    assert_close(found, expected)
    assert result.loss == pytest.approx(of_kept.loss, rel=1e-6)
    nothing, silent = gradient(learner, written(batch, [0.0] * len(batch)))
    assert silent.loss == 0.0
    assert not any(tensor.any() for tensor in nothing.values())


def test_scales_pull_by_weight_and_reverses_it_when_negative(learner, batch):
    learner.create_policy("p", LoRA(rank=4), seed=0)
    plain, _ = gradient(learner, written(batch))
    found, _ = gradient(learner, written(batch, [-2.0] * len(batch)))
    assert_close(found, {name: -2.0 * tensor for name, tensor in plain.items()})


@AGGREGATIONS
def test_keeps_gradient_however_micro_batches_or_calls_are_cut(model_dir, learner, batch, aggregation):
    batch = written(batch, np.linspace(-1.0, 2.0, len(batch)).tolist())
    loss = likelihood_loss(aggregation=aggregation, constant_tokens=10)
    small = Learner(model_dir, micro_batch_tokens=7)
    for each in (learner, small):
        each.create_policy("p", FullParameters(), seed=0)
    whole, result = gradient(learner, batch, loss)
    cut, of_cut = gradient(small, batch, loss)
    assert_close(cut, whole)
    assert of_cut.loss == pytest.approx(result.loss, abs=1e-5)
    totals = BatchTotals.of(batch)
    parts = [gradient(learner, part, loss, totals=totals) for part in (batch[:2], batch[2:])]
    assert_close({name: parts[0][0][name] + parts[1][0][name] for name in whole}, whole)
    assert sum(part.loss for _, part in parts) == pytest.approx(result.loss, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "loss", "field"),
    [
        ({"advantage": math.nan}, likelihood_loss(), "advantage"),
        ({"advantage": -math.inf}, likelihood_loss(), "advantage"),
        ({}, likelihood_loss(aggregation="constant", constant_tokens=0), "constant_tokens"),
    ],
)
def test_rejects_weight_that_is_not_a_number_and_zero_constant(learner, batch, change, loss, field):
    learner.create_policy("p", LoRA(rank=4), seed=0)
    first, *rest = written(batch)
    with pytest.raises(InvalidRequestError) as caught:
        learner.forward_backward("p", [dataclasses.replace(first, **change), *rest], loss)
    assert caught.value.field == field
    with pytest.raises(ConflictError, check=lambda error: error.code == "no_gradient"):
        learner.optim_step("p", learning_rate=1e-3)


def test_rejects_texts_without_a_trained_token(learner, batch):
    learner.create_policy("p", LoRA(rank=4), seed=0)
    unmarked = [dataclasses.replace(s, loss_mask=[False] * len(s.loss_mask)) for s in written(batch)]
    with pytest.raises(InvalidRequestError) as caught:
        learner.forward_backward("p", unmarked, likelihood_loss())
    assert caught.value.field == "loss_mask"
