"""One policy's AdamW by itself, on weights of a few numbers.

AdamW's first step hardly depends on the gradient's length, so what was clipped is read off its first moment:
after one step a tenth of the gradient.
"""

import sys

import numpy as np
import pytest
import torch
from torch import nn

from backend.learner.policy_optimizer import PolicyOptimizer
from tinkergym.errors import ConflictError, MissingExtraError
from tinkergym.schema.optimizer import AdamW

FREE = {"learning_rate": 0.1, "max_grad_norm": 1e9, "weight_decay": 0.0}


@pytest.fixture
def policy():
    return nn.Parameter(torch.tensor([1.0, -2.0]))


@pytest.fixture
def head():
    return nn.Parameter(torch.tensor([4.0]))


def stepped(policy, head, gradient, head_gradient, **settings):
    """The optimizer after a first step on these gradients."""
    policy.grad, head.grad = torch.tensor(gradient), torch.tensor(head_gradient)
    optimizer = PolicyOptimizer({"policy": policy}, {"head": head})
    optimizer.step(**FREE | settings)
    return optimizer


@pytest.mark.parametrize(
    ("head_gradient", "head_clipped"),
    [(400.0, 1.0), (0.5, 0.5)],
    ids=["a loud head", "a quiet head"],
)
def test_clips_policy_and_value_head_each_by_its_own_length(policy, head, head_gradient, head_clipped):
    moments = stepped(policy, head, [3.0, 4.0], [head_gradient], max_grad_norm=1.0).state()
    torch.testing.assert_close(moments["exp_avg.policy"], 0.1 * torch.tensor([0.6, 0.8]))
    torch.testing.assert_close(moments["exp_avg.head"], 0.1 * torch.tensor([head_clipped]))


def test_decays_the_policy_but_not_its_value_head(policy, head):
    stepped(policy, head, [0.0, 0.0], [0.0], weight_decay=0.5, skip_zero_gradient=False)
    torch.testing.assert_close(policy.detach(), 0.95 * torch.tensor([1.0, -2.0]))
    assert head.item() == 4.0


@pytest.mark.parametrize("settings", [AdamW(), AdamW(beta1=0.8, beta2=0.95, eps=1e-3)])
def test_steps_as_adamw_by_its_definition(policy, head, settings):
    optimizer = PolicyOptimizer({"policy": policy}, {"head": head}, settings)
    beta1, beta2 = settings.beta1, settings.beta2
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
        optimizer.step(learning_rate=0.1, max_grad_norm=1e9, weight_decay=0.3, value_learning_rate=0.05)
        for name, gradient in gradients.items():
            first[name] = beta1 * first[name] + (1 - beta1) * gradient
            second[name] = beta2 * second[name] + (1 - beta2) * gradient**2
            root = np.sqrt(second[name] / (1 - beta2**step))
            direction = (first[name] / (1 - beta1**step)) / (root + settings.eps)
            weights[name] = weights[name] * (1 - rates[name] * decays[name]) - rates[name] * direction
        np.testing.assert_allclose(policy.detach().numpy(), weights["policy"], atol=2e-6)
        np.testing.assert_allclose(head.detach().numpy(), weights["head"], atol=2e-6)


def test_adds_eps_to_the_root_of_second_moment(policy, head):
    stepped(policy, head, [1e-8, 0.0], [1e-8])
    torch.testing.assert_close(policy.detach(), torch.tensor([1.0 - 0.1 / 2, -2.0]))
    torch.testing.assert_close(head.detach(), torch.tensor([4.0 - 0.1 / 2]))


@pytest.mark.parametrize("skip", [True, False])
def test_moves_nothing_on_exactly_zero_gradient_except_under_plain_adamw(policy, head, skip):
    optimizer = stepped(policy, head, [3.0, 4.0], [5.0])
    weights = [parameter.detach().clone() for parameter in (policy, head)]
    moments = {name: moment.clone() for name, moment in optimizer.state().items()}
    policy.grad, head.grad = torch.zeros(2), torch.zeros(1)
    result = optimizer.step(**FREE | {"weight_decay": 0.5}, skip_zero_gradient=skip)
    assert (result.skipped, result.optimizer_step, result.grad_norm) == (skip, 1 if skip else 2, 0.0)
    assert [torch.equal(*pair) for pair in zip((policy, head), weights, strict=True)] == [skip, skip]
    assert all(torch.equal(moment, moments[name]) for name, moment in optimizer.state().items()) == skip


@pytest.mark.parametrize(("gradient", "head_gradient"), [([0.0, 1e-30], [0.0]), ([0.0, 0.0], [0.1])])
def test_applies_gradient_of_which_any_number_is_not_zero(policy, head, gradient, head_gradient):
    optimizer = stepped(policy, head, [3.0, 4.0], [5.0])
    policy.grad, head.grad = torch.tensor(gradient), torch.tensor(head_gradient)
    assert not optimizer.step(**FREE).skipped
    assert optimizer.steps == 2


def random_steps(weights, settings, *, steps=12, optimizer=None):
    """Step a large and a small tensor of weights by gradients that a seed draws."""
    optimizer = optimizer or PolicyOptimizer(weights, settings=settings)
    for _ in range(steps):
        generator = torch.Generator().manual_seed(optimizer.steps)
        for parameter in weights.values():
            parameter.grad = torch.randn(parameter.shape, generator=generator) + 0.5
        optimizer.step(learning_rate=1e-2, max_grad_norm=1e9, weight_decay=0.1)
    return optimizer


def two_tensors():
    return {"large": nn.Parameter(torch.zeros(64, 128)), "small": nn.Parameter(torch.zeros(3, 5))}


def test_steps_with_8_bit_moments_nearly_as_with_32():
    pytest.importorskip("bitsandbytes")
    exact, rounded = two_tensors(), two_tensors()
    random_steps(exact, AdamW(beta2=0.99))
    optimizer = random_steps(rounded, AdamW(beta2=0.99, state_bits=8))
    torch.testing.assert_close(rounded["large"], exact["large"], atol=0.01, rtol=0)
    torch.testing.assert_close(rounded["small"], exact["small"])
    state = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    assert (state["state1.large"].dtype, state["state1.small"].dtype) == (torch.uint8, torch.float32)

    again = {name: nn.Parameter(own.detach().clone()) for name, own in rounded.items()}
    resumed = PolicyOptimizer(again, settings=AdamW(beta2=0.99, state_bits=8))
    resumed.restore(state, steps=12)
    random_steps(rounded, None, steps=5, optimizer=optimizer)
    random_steps(again, None, steps=5, optimizer=resumed)
    assert all(torch.equal(again[name], rounded[name]) for name in rounded)


def test_rejects_moments_of_other_bits(policy):
    optimizer = PolicyOptimizer({"policy": policy})
    with pytest.raises(ConflictError) as caught:
        optimizer.restore({"state1.policy": torch.zeros(2), "state2.policy": torch.zeros(2)}, steps=3)
    assert caught.value.field == "optimizer"


def test_rejects_eight_bit_moments_without_bitsandbytes_by_name(policy, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(MissingExtraError) as caught:
        PolicyOptimizer({"policy": policy}, settings=AdamW(state_bits=8))
    assert caught.value.field == "optimizer.state_bits"
