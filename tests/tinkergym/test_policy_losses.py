import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.learner.token_loss import policy_loss, token_entropies
from tinkergym.policy_losses import (
    LossName,
    LossTokens,
    cispo_loss,
    clipped_policy_loss,
    dro_loss,
    gspo_loss,
    importance_sampling_loss,
    kl_estimates,
    reinforce_loss,
)


def loss_of(ratios, advantages, *, clip_low=0.2, clip_high=0.3):
    logprobs = torch.tensor([math.log(r) - 1.0 for r in ratios], dtype=torch.float64, requires_grad=True)
    losses, clipped = clipped_policy_loss(
        logprobs,
        torch.full((len(ratios),), -1.0, dtype=torch.float64),
        torch.tensor(advantages, dtype=torch.float64),
        clip_low=clip_low,
        clip_high=clip_high,
    )
    losses.sum().backward()
    return losses.tolist(), clipped.tolist(), logprobs.grad.tolist()


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "clipped"),
    [
        (1.0, 2.0, -2.0, False),
        (1.0, -2.0, 2.0, False),
        (1.25, 2.0, -2.5, False),
        (2.0, 2.0, -2.6, True),  # good enough already: 1.3 * 2
        (2.0, -2.0, 4.0, False),  # a bad token that became likelier is pushed back in full
        (0.5, -2.0, 1.6, True),  # 0.8 * 2
        (0.5, 2.0, -1.0, False),
    ],
)
def test_matches_golden_values(ratio, advantage, loss, clipped):
    losses, was_clipped, gradient = loss_of([ratio], [advantage])
    assert losses == pytest.approx([loss])
    assert was_clipped == [clipped]
    assert gradient == pytest.approx([0.0 if clipped else -advantage * ratio])


def test_has_plain_policy_gradient_in_the_first_update():
    _, clipped, gradient = loss_of([1.0, 1.0], [1.5, -0.5])
    assert clipped == [False, False]
    assert gradient == pytest.approx([-1.5, 0.5])


def test_gives_exactly_zero_for_advantage_zero():
    losses, clipped, gradient = loss_of([0.1, 1.0, 9.0], [0.0, 0.0, 0.0])
    assert not any(losses) and not any(clipped) and not any(gradient)


def test_has_gradient_of_finite_differences():
    generator = torch.Generator().manual_seed(0)
    draw = lambda: torch.randn(40, generator=generator, dtype=torch.float64)  # noqa: E731
    sampling, advantages = -2 + 0.3 * draw(), draw()
    assert torch.autograd.gradcheck(
        lambda logprobs: clipped_policy_loss(logprobs, sampling, advantages, clip_low=0.2, clip_high=0.3)[0],
        (-2 + 0.3 * draw()).requires_grad_(),
    )


def test_matches_entropy_of_the_textbook_and_its_finite_difference_gradient():
    fair_coin, certain, die = [0.5, 0.5, 1e-30, 1e-30], [1.0, 1e-30, 1e-30, 1e-30], [0.25] * 4
    entropies = token_entropies(torch.tensor([fair_coin, certain, die], dtype=torch.float64).log())
    assert entropies.tolist() == pytest.approx([math.log(2), 0.0, math.log(4)])
    logits = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(
        lambda x: token_entropies(torch.log_softmax(x, -1)), (logits.requires_grad_(),)
    )


# --- the other losses ------------------------------------------------------------------------------------

# Two tokens: one that became 1.5 times as likely as when it was sampled, and one half as likely.
SAMPLING = np.array([-1.0, -2.0])
LEARNER = SAMPLING + np.log([1.5, 0.5])


def run(loss, advantages, learner=LEARNER, sampling=SAMPLING, **settings):
    """Return losses, clipped and the gradient of each token's loss with respect to its logprob."""
    logprobs = torch.tensor(learner, dtype=torch.float64, requires_grad=True)
    found = loss(logprobs, torch.tensor(sampling, dtype=torch.float64), torch.tensor(advantages), **settings)
    losses, clipped = found if isinstance(found, tuple) else (found, None)
    losses.sum().backward()
    return losses.detach().numpy(), None if clipped is None else clipped.tolist(), logprobs.grad.numpy()


def test_multiplies_logprob_by_advantage_in_reinforce():
    losses, _, gradient = run(lambda learner, _, adv: reinforce_loss(learner, adv), [2.0, -1.0])
    np.testing.assert_allclose(losses, [-2.0 * LEARNER[0], 1.0 * LEARNER[1]])
    np.testing.assert_allclose(gradient, [-2.0, 1.0])


def test_weighs_by_the_whole_ratio_in_importance_sampling():
    losses, _, gradient = run(importance_sampling_loss, [2.0, -1.0])
    np.testing.assert_allclose(losses, [-3.0, 0.5])
    np.testing.assert_allclose(gradient, [-3.0, 0.5])


def test_clips_weight_and_keeps_every_tokens_gradient_in_cispo():
    losses, clipped, gradient = run(cispo_loss, [2.0, -1.0], clip_low=0.2, clip_high=0.3)
    # Weights 1.3 instead of 1.5, and 0.8 instead of 0.5.
    np.testing.assert_allclose(losses, [-1.3 * 2.0 * LEARNER[0], 0.8 * LEARNER[1]])
    np.testing.assert_allclose(gradient, [-2.6, 0.8])
    assert clipped == [True, True]
    _, clipped, gradient = run(cispo_loss, [2.0, -1.0], clip_low=1.0, clip_high=1.0)
    np.testing.assert_allclose(gradient, [-3.0, 0.5])
    assert clipped == [False, False]


def test_gives_gspo_one_ratio_by_geometric_mean_of_tokens():
    gap = float((LEARNER - SAMPLING).mean())  # log of sqrt(1.5 * 0.5) = 0.866
    ratio = math.sqrt(0.75)

    def loss(learner, _, adv, **settings):
        return gspo_loss(learner, torch.full((2,), gap, dtype=torch.float64), adv, **settings)

    losses, clipped, gradient = run(loss, [2.0, 2.0], clip_low=0.1, clip_high=0.1)
    np.testing.assert_allclose(losses, [-2 * ratio] * 2)
    np.testing.assert_allclose(gradient, [-2 * ratio] * 2)
    assert clipped == [False, False]
    losses, clipped, gradient = run(loss, [-2.0, -2.0], clip_low=0.1, clip_high=0.1)
    np.testing.assert_allclose(losses, [1.8, 1.8])
    assert clipped == [True, True]
    assert not gradient.any()


def test_has_the_papers_sequence_ratio_gradient_for_gspo():
    rng = np.random.default_rng(0)
    at, sampling = -2 + 0.1 * rng.normal(size=(2, 5))

    def paper(logprobs):
        return -1.7 * np.exp((logprobs - sampling).mean())

    learner = torch.tensor(at, requires_grad=True)
    gaps = torch.full((5,), (at - sampling).mean(), dtype=torch.float64)
    advantages = torch.full((5,), 1.7, dtype=torch.float64)
    losses, _ = gspo_loss(learner, gaps, advantages, clip_low=0.9, clip_high=9.0)
    losses.mean().backward()
    np.testing.assert_allclose(learner.grad.numpy(), slopes(paper, at), atol=1e-8)
    assert float(losses.mean().detach()) == pytest.approx(paper(at))


def test_draws_dro_as_square_around_the_gap_advantage_earns():
    beta, advantages, gap = 0.5, np.array([2.0, -1.0]), LEARNER - SAMPLING
    losses, _, gradient = run(dro_loss, advantages, beta=beta)
    square = (advantages - beta * gap) ** 2 / (2 * beta)
    np.testing.assert_allclose(losses, square - advantages**2 / (2 * beta))
    np.testing.assert_allclose(gradient, -advantages + beta * gap)
    _, _, at_best = run(dro_loss, advantages, learner=SAMPLING + advantages / beta, beta=beta)
    np.testing.assert_allclose(at_best, 0.0, atol=1e-12)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (4.0, -2.0, 6.0, 0.0),  # bounded: 3 * 2 instead of 4 * 2
        (2.9, -2.0, 5.8, 5.8),
        (4.0, 2.0, -2.4, 0.0),  # the ordinary bound: 1.2 * 2
        (0.5, -2.0, 1.6, 0.0),
    ],
)
def test_bounds_ratio_of_a_bad_token_by_dual_clip(ratio, advantage, loss, gradient):
    losses, _, found = run(
        clipped_policy_loss,
        [advantage],
        learner=[math.log(ratio)],
        sampling=[0.0],
        clip_low=0.2,
        clip_high=0.2,
        dual_clip=3.0,
    )
    assert losses == pytest.approx([loss])
    assert found == pytest.approx([gradient])


DIFFERENTIABLE = {
    "reinforce": lambda x, s, a: reinforce_loss(x, a),
    "importance_sampling": importance_sampling_loss,
    "dro": lambda x, s, a: dro_loss(x, s, a, beta=0.3),
    "ppo_dual": lambda x, s, a: clipped_policy_loss(x, s, a, clip_low=0.1, clip_high=0.2, dual_clip=1.5)[0],
    "k1": lambda x, s, a: kl_estimates(x, s, "k1"),
    "k2": lambda x, s, a: kl_estimates(x, s, "k2"),
    "k3": lambda x, s, a: kl_estimates(x, s, "k3"),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_has_gradient_of_finite_differences_in_each_loss(name):
    generator = torch.Generator().manual_seed(1)
    draw = lambda: torch.randn(40, generator=generator, dtype=torch.float64)  # noqa: E731
    sampling, advantages = -2 + 0.3 * draw(), draw()
    learner = (-2 + 0.3 * draw()).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: DIFFERENTIABLE[name](x, sampling, advantages), learner)


def minimised(name, logprobs, *, at, anchor, advantages):
    """What each loss stands for by its paper, as a number per token of [sequences, tokens].

    What a paper holds constant has its value `at` the logprobs where the gradient is taken.
    """
    ratios = np.exp(logprobs - anchor)
    if name == "gspo":
        ratios = np.exp((at - anchor).mean(1, keepdims=True)) * np.exp(logprobs - at)
    pessimistic = -np.minimum(ratios * advantages, ratios.clip(0.8, 1.2) * advantages)
    return {
        "ppo": pessimistic,
        "gspo": pessimistic,
        "reinforce": -advantages * logprobs,
        "importance_sampling": -advantages * ratios,
        "cispo": -np.exp(at - anchor).clip(0.8, 1.2) * advantages * logprobs,
        "dro": -(advantages * (logprobs - anchor) - 0.1 / 2 * (logprobs - anchor) ** 2),
    }[name]


BESIDE = {
    "nothing": {},
    "k2": {"kl_coefficient": 0.3, "kl_estimator": "k2"},
    "k3": {"kl_coefficient": 0.3, "kl_estimator": "k3"},
    "truncated at the first update": {"importance_correction": "truncated", "importance_cap": 1.2},
    "masked at a later one": {"importance_correction": "masked", "importance_cap": 1.5},
    "truncated by sequence": {
        "importance_correction": "truncated",
        "importance_cap": 1.2,
        "importance_level": "sequence",
    },
}


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("name", get_args(LossName))
def test_matches_finite_differences_for_every_loss(name, beside):
    rng, shape = np.random.default_rng(3), (20, 4)
    at, sampling, proximal, reference = -2 + 0.3 * rng.normal(size=(4, *shape))
    advantages = rng.normal(size=shape)
    anchor, weights = sampling, np.ones(shape)
    if beside == "truncated at the first update":
        anchor, weights = at, np.exp(at - sampling).clip(max=1.2)
    elif beside == "masked at a later one":
        ratios = np.exp(proximal - sampling)
        anchor, weights = proximal, ratios * ((ratios < 1.5) & (ratios > 1 / 1.5))
    elif beside == "truncated by sequence":
        ratios = np.exp((proximal - sampling).sum(1, keepdims=True))
        anchor, weights = proximal, ratios.clip(max=1.2)

    def loss(logprobs):
        total = weights * minimised(name, logprobs, at=at, anchor=anchor, advantages=advantages)
        gap = logprobs - reference
        penalty = {"k2": gap**2 / 2, "k3": np.exp(-gap) - 1 + gap}.get(beside, np.zeros(shape))
        return (total + 0.3 * penalty).sum()

    of_sequence = {
        "sequence_gaps": (at - anchor).mean(1, keepdims=True),
        "sequence_log_ratios": (proximal - sampling).sum(1, keepdims=True),
    }
    tokens = seen(
        learner_logprobs=at.reshape(-1),
        sampling_logprobs=sampling.reshape(-1),
        advantages=advantages.reshape(-1),
        reference_logprobs=reference.reshape(-1),
        **({} if anchor is at else {"proximal_logprobs": proximal.reshape(-1)}),
        **{field: np.broadcast_to(value, shape).reshape(-1) for field, value in of_sequence.items()},
    )
    gradient, _ = gradient_of(policy_loss(loss=name, dro_beta=0.1, **BESIDE[beside]), tokens)
    np.testing.assert_allclose(gradient.reshape(shape), slopes(loss, at), atol=1e-7)


def slopes(function, at, step=1e-6):
    """Central differences of a function of an array."""
    found = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        moved = np.zeros_like(at)
        moved[place] = step
        found[place] = (function(at + moved) - function(at - moved)) / (2 * step)
    return found


TOKENS = st.lists(
    st.tuples(st.floats(-3, 3), st.floats(-5, 5)), min_size=1, max_size=20
)  # log ratio, advantage


@given(TOKENS, st.floats(0.01, 0.9), st.floats(0.01, 2.0), st.none() | st.floats(3.5, 10.0))
def test_never_flatters_an_update_by_clipping(tokens, low, high, dual):
    gaps, advantages = (torch.tensor(some, dtype=torch.float64) for some in zip(*tokens, strict=True))
    zeros = torch.zeros_like(gaps)
    surrogate = -importance_sampling_loss(gaps, zeros, advantages)
    plain, _ = clipped_policy_loss(gaps, zeros, advantages, clip_low=low, clip_high=high)
    assert (-plain <= surrogate + 1e-9).all()
    bounded, _ = clipped_policy_loss(gaps, zeros, advantages, clip_low=low, clip_high=high, dual_clip=dual)
    if dual is not None:  # and the second bound only stops a bad token from weighing more
        assert (-bounded >= dual * advantages.clamp(max=0) - 1e-9).all()
        assert (-bounded >= -plain - 1e-9).all()


@given(TOKENS)
def test_has_gradient_of_reinforce_for_all_losses_on_own_tokens(tokens):
    sampling, advantages = (torch.tensor(some, dtype=torch.float64) for some in zip(*tokens, strict=True))
    for name in ("ppo", "importance_sampling", "cispo", "gspo", "dro"):
        learner = sampling.clone().requires_grad_()
        seen = LossTokens(
            learner_logprobs=learner,
            sampling_logprobs=sampling,
            advantages=advantages,
            sequence_gaps=torch.zeros_like(sampling),
        )
        policy_loss(loss=name).token_losses(seen).losses.sum().backward()
        torch.testing.assert_close(learner.grad, -advantages)


# --- what is put together --------------------------------------------------------------------------------


def seen(**fields):
    tensors = {
        "learner_logprobs": LEARNER,
        "sampling_logprobs": SAMPLING,
        "advantages": np.array([2.0, -1.0]),
        **fields,
    }
    made = {name: torch.tensor(np.asarray(value, dtype=np.float64)) for name, value in tensors.items()}
    made["learner_logprobs"].requires_grad_()
    return LossTokens(**made)


def gradient_of(config, tokens):
    found = config.token_losses(tokens)
    found.losses.sum().backward()
    return tokens.learner_logprobs.grad.numpy(), found


def test_adds_kl_penalty_to_each_tokens_loss():
    reference = SAMPLING - 0.5
    gradient, found = gradient_of(
        policy_loss(loss="reinforce", kl_coefficient=0.1, kl_estimator="k2"),
        seen(reference_logprobs=reference),
    )
    gap = LEARNER - reference
    np.testing.assert_allclose(gradient, [-2.0, 1.0] + 0.1 * gap)
    np.testing.assert_allclose(found.shares["kl"].numpy(), gap**2 / 2)


def test_weighs_by_step_before_and_begins_ratio_at_one():
    correction = {"importance_correction": "truncated", "importance_cap": 1.2}
    gradient, found = gradient_of(policy_loss(**correction), seen())
    # At the first update the learner itself is proximal: weights min(1.5, 1.2) and 0.5, ratio 1.
    np.testing.assert_allclose(gradient, [-2.0 * 1.2, 0.5])
    np.testing.assert_allclose(found.largest["importance_weight_max"].numpy(), [1.2, 0.5])
    assert not found.shares["clip_fraction"].any()


def test_takes_ratio_of_later_updates_against_the_first():
    correction = {"importance_correction": "masked", "importance_cap": 4.0}
    proximal = SAMPLING + np.log([3.0, 0.2])  # 0.2 is below 1 / 4: left out
    gradient, found = gradient_of(
        policy_loss(loss="importance_sampling", **correction), seen(proximal_logprobs=proximal)
    )
    np.testing.assert_allclose(gradient, [-2.0 * 3.0 * (1.5 / 3.0), 0.0])
    assert found.shares["importance_changed_fraction"].tolist() == [False, True]


def test_multiplies_sequences_correction_over_its_tokens():
    correction = {"importance_correction": "truncated", "importance_cap": 5.0, "importance_level": "sequence"}
    config = policy_loss(loss="reinforce", **correction)
    gradient, _ = gradient_of(
        config, seen(sequence_log_ratios=[math.log(0.75)] * 2, sequence_gaps=[0.0, 0.0])
    )
    np.testing.assert_allclose(gradient, [-2.0 * 0.75, 0.75])
    assert config.reads_sequences


def test_counts_clipped_tokens_by_side():
    found = policy_loss(clip_low=0.2, clip_high=0.2).token_losses(seen())
    assert found.shares["clip_high_fraction"].tolist() == [True, False]
    assert found.shares["clip_low_fraction"].tolist() == [False, True]


@pytest.mark.parametrize("name", ["ppo", "cispo"])
def test_keeps_a_tokens_own_side_under_a_sequences_correction(name):
    correction = {"importance_correction": "truncated", "importance_level": "sequence"}
    # On the whole the sequence became less likely, though its first token became likelier.
    sequence = {"sequence_gaps": [-0.1, -0.1], "sequence_log_ratios": [0.0, 0.0]}
    found = policy_loss(loss=name, **correction).token_losses(seen(proximal_logprobs=SAMPLING, **sequence))
    assert found.shares["clip_high_fraction"].tolist() == [True, False]
    assert found.shares["clip_low_fraction"].tolist() == [False, True]


def test_takes_side_of_a_sequences_ratio_from_the_sequence():
    config = policy_loss(loss="gspo", clip_low=0.01, clip_high=0.01)
    found = config.token_losses(seen(sequence_gaps=[-0.1, -0.1]))
    assert found.shares["clip_low_fraction"].tolist() == [False, True]
    assert not found.shares["clip_high_fraction"].any()
