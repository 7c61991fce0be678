"""One policy's AdamW by itself, on weights of a few numbers.

AdamW's first step hardly depends on the gradient's length, so what was clipped is read off its first moment:
after one step a tenth of the gradient.
"""

import pytest
import torch
from torch import nn

from backend.learner.optimiser import PolicyOptimiser

FREE = {"learning_rate": 0.1, "max_grad_norm": 1e9, "weight_decay": 0.0}


@pytest.fixture
def policy():
    return nn.Parameter(torch.tensor([1.0, -2.0]))


@pytest.fixture
def head():
    return nn.Parameter(torch.tensor([4.0]))


def stepped(policy, head, gradient, head_gradient, **settings):
    """The optimiser after a first step on these gradients."""
    policy.grad, head.grad = torch.tensor(gradient), torch.tensor(head_gradient)
    optimiser = PolicyOptimiser({"policy": policy}, {"head": head})
    optimiser.step(**FREE | settings)
    return optimiser


@pytest.mark.parametrize(
    ("head_gradient", "head_clipped"),
    [(400.0, 1.0), (0.5, 0.5)],
    ids=["a loud head", "a quiet head"],
)
def test_policy_and_value_head_are_clipped_each_by_its_own_length(policy, head, head_gradient, head_clipped):
    moments = stepped(policy, head, [3.0, 4.0], [head_gradient], max_grad_norm=1.0).state()
    torch.testing.assert_close(moments["exp_avg.policy"], 0.1 * torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(moments["exp_avg.head"], 0.1 * torch.tensor([head_clipped]))


def test_the_policy_decays_and_its_value_head_does_not(policy, head):
    stepped(policy, head, [0.0, 0.0], [0.0], weight_decay=0.5)
    torch.testing.assert_close(policy.detach(), 0.95 * torch.tensor([1.0, -2.0]))
    assert head.item() == 4.0
