import math

import pytest
import torch

from backend.learner.losses import clipped_policy_loss, token_entropies


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
def test_golden_values(ratio, advantage, loss, clipped):
    losses, was_clipped, gradient = loss_of([ratio], [advantage])
    assert losses == pytest.approx([loss])
    assert was_clipped == [clipped]
    assert gradient == pytest.approx([0.0 if clipped else -advantage * ratio])


def test_the_first_update_has_the_gradient_of_plain_policy_gradient():
    _, clipped, gradient = loss_of([1.0, 1.0], [1.5, -0.5])
    assert clipped == [False, False]
    assert gradient == pytest.approx([-1.5, 0.5])


def test_advantage_zero_gives_exactly_zero():
    losses, clipped, gradient = loss_of([0.1, 1.0, 9.0], [0.0, 0.0, 0.0])
    assert not any(losses) and not any(clipped) and not any(gradient)


def test_the_gradient_is_that_of_finite_differences():
    generator = torch.Generator().manual_seed(0)
    draw = lambda: torch.randn(40, generator=generator, dtype=torch.float64)  # noqa: E731
    sampling, advantages = -2 + 0.3 * draw(), draw()
    assert torch.autograd.gradcheck(
        lambda logprobs: clipped_policy_loss(logprobs, sampling, advantages, clip_low=0.2, clip_high=0.3)[0],
        (-2 + 0.3 * draw()).requires_grad_(),
    )


def test_entropy_is_that_of_the_textbook_and_its_gradient_that_of_finite_differences():
    fair_coin, certain, die = [0.5, 0.5, 1e-30, 1e-30], [1.0, 1e-30, 1e-30, 1e-30], [0.25] * 4
    entropies = token_entropies(torch.tensor([fair_coin, certain, die], dtype=torch.float64).log())
    assert entropies.tolist() == pytest.approx([math.log(2), 0.0, math.log(4)])
    logits = torch.randn(3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.autograd.gradcheck(
        lambda x: token_entropies(torch.log_softmax(x, -1)), (logits.requires_grad_(),)
    )
