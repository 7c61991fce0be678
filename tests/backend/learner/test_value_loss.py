import pytest
import torch

from backend.learner.token_loss import algorithm_loss, policy_loss
from tinkergym.algorithms import PPO
from tinkergym.algorithms.ppo import value_losses
from tinkergym.errors import InvalidRequestError
from tinkergym.policy_losses import LossTokens


def of(value, target, old, clip=None):
    values = torch.tensor([value], requires_grad=True)
    losses, clipped = value_losses(values, torch.tensor([target]), torch.tensor([old]), clip=clip)
    losses.sum().backward()
    return losses.item(), values.grad.item(), clipped.item()


@pytest.mark.parametrize(
    ("value", "target", "old", "clip", "loss", "gradient", "clipped"),
    [
        (1.0, 3.0, 1.0, None, 2.0, -2.0, False),
        (1.0, 3.0, 1.0, 0.2, 2.0, -2.0, False),  # has not moved yet
        (1.1, 3.0, 1.0, 0.2, 1.805, -1.9, False),  # within the bound
        (1.5, 3.0, 1.0, 0.2, 1.62, 0.0, True),  # came too near: 0.5 * (1.2 - 3)^2
        (0.5, 3.0, 1.0, 0.2, 3.125, -2.5, False),  # went away from its target
        (5.0, 3.0, 1.0, 0.2, 2.0, 2.0, False),  # beyond the target by more than the bound is before it
    ],
)
def test_matches_golden_values(value, target, old, clip, loss, gradient, clipped):
    assert of(value, target, old, clip) == (pytest.approx(loss), pytest.approx(gradient), clipped)


@pytest.mark.parametrize("clip", [None, 0.3])
def test_has_gradient_of_finite_differences(clip):
    generator = torch.Generator().manual_seed(1)
    draw = lambda: torch.randn(40, generator=generator, dtype=torch.float64)  # noqa: E731
    targets, old, values = draw(), draw(), draw().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: value_losses(x, targets, old, clip=clip)[0], values)
    assert value_losses(values, targets, old, clip=clip)[1].any() == (clip is not None)


def tokens(**settings):
    ones = torch.ones(2)
    given = {"learner_logprobs": -ones, "sampling_logprobs": -ones, "advantages": torch.zeros(2)}
    return LossTokens(**{**given, **settings})


def test_weighs_value_loss_beside_the_policys_by_coefficient():
    config = algorithm_loss(PPO(value_coefficient=0.5))
    found = config.token_losses(
        tokens(values=torch.tensor([0.0, 1.0]), value_targets=torch.tensor([2.0, 1.0]))
    )
    assert found.losses.tolist() == [1.0, 0.0]
    assert found.shares["value_loss"].tolist() == [2.0, 0.0]
    assert "value_clip_fraction" not in found.shares


def test_leaves_no_sequence_silent_with_a_value_loss():
    assert policy_loss().silent_without_advantage
    assert not algorithm_loss(PPO(value_coefficient=0.5)).silent_without_advantage


def test_rejects_value_loss_without_a_head_or_targets():
    config = algorithm_loss(PPO(value_coefficient=0.5))
    with pytest.raises(InvalidRequestError, check=lambda error: error.field == "value_targets"):
        config.token_losses(tokens())
