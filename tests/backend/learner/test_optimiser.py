"""One policy's AdamW by itself, on weights of a few numbers.

AdamW's first step hardly depends on the gradient's length, so what was clipped is read off its first moment:
after one step a tenth of the gradient.
"""

import numpy as np
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
    stepped(policy, head, [0.0, 0.0], [0.0], weight_decay=0.5, skip_zero_gradient=False)
    torch.testing.assert_close(policy.detach(), 0.95 * torch.tensor([1.0, -2.0]))
    assert head.item() == 4.0


def test_steps_are_those_of_adamw_by_its_definition(policy, head):
    optimiser = PolicyOptimiser({"policy": policy}, {"head": head})
    rng = np.random.default_rng(0)
    weights = {"policy": np.array([1.0, -2.0]), "head": np.array([4.0])}
    rates, decays = {"policy": 0.1, "head": 0.05}, {"policy": 0.3, "head": 0.0}
    first = {name: np.zeros_like(own) for name, own in weights.items()}
    second = {name: np.zeros_like(own) for name, own in weights.items()}
    for step in range(1, 9):
        # Of very different sizes, so that both moments and eps show.
        gradients = {name: rng.normal(size=own.shape) * 10.0 ** -(step % 5) for name, own in weights.items()}
        for name, parameter in (("policy", policy), ("head", head)):
            parameter.grad = torch.tensor(gradients[name], dtype=torch.float32)
        optimiser.step(learning_rate=0.1, max_grad_norm=1e9, weight_decay=0.3, value_learning_rate=0.05)
        for name, gradient in gradients.items():
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.999 * second[name] + 0.001 * gradient**2
            direction = (first[name] / (1 - 0.9**step)) / (np.sqrt(second[name] / (1 - 0.999**step)) + 1e-8)
            weights[name] = weights[name] * (1 - rates[name] * decays[name]) - rates[name] * direction
        np.testing.assert_allclose(policy.detach().numpy(), weights["policy"], atol=2e-6)
        np.testing.assert_allclose(head.detach().numpy(), weights["head"], atol=2e-6)


def test_eps_is_added_to_the_root_of_the_second_moment(policy, head):
    stepped(policy, head, [1e-8, 0.0], [1e-8])
    torch.testing.assert_close(policy.detach(), torch.tensor([1.0 - 0.1 / 2, -2.0]))
    torch.testing.assert_close(head.detach(), torch.tensor([4.0 - 0.1 / 2]))


@pytest.mark.parametrize("skip", [True, False])
def test_a_gradient_of_exactly_zero_moves_nothing_unless_adamw_is_to_have_its_way(policy, head, skip):
    optimiser = stepped(policy, head, [3.0, 4.0], [5.0])
    weights = [parameter.detach().clone() for parameter in (policy, head)]
    moments = {name: moment.clone() for name, moment in optimiser.state().items()}
    policy.grad, head.grad = torch.zeros(2), torch.zeros(1)
    result = optimiser.step(**FREE | {"weight_decay": 0.5}, skip_zero_gradient=skip)
    assert (result.skipped, result.optimizer_step, result.grad_norm) == (skip, 1 if skip else 2, 0.0)
    assert [torch.equal(*pair) for pair in zip((policy, head), weights, strict=True)] == [skip, skip]
    assert all(torch.equal(moment, moments[name]) for name, moment in optimiser.state().items()) == skip


@pytest.mark.parametrize(("gradient", "head_gradient"), [([0.0, 1e-30], [0.0]), ([0.0, 0.0], [0.1])])
def test_a_gradient_of_which_any_number_is_not_zero_is_applied(policy, head, gradient, head_gradient):
    optimiser = stepped(policy, head, [3.0, 4.0], [5.0])
    policy.grad, head.grad = torch.tensor(gradient), torch.tensor(head_gradient)
    assert not optimiser.step(**FREE).skipped
    assert optimiser.steps == 2
