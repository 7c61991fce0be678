import pytest
import torch
from torch import nn

from backend.learner.adamw import TorchAdamW, stepper
from tinkergym.schema.optimizer import AdamW


def weights():
    return {"w": nn.Parameter(torch.tensor([1.0, -2.0])), "b": nn.Parameter(torch.tensor([3.0]))}


def stepped(parameters, times, adamw=None):
    adamw = adamw or stepper([parameters], AdamW())
    adamw.groups[0]["lr"] = 0.1
    for number in range(times):
        for parameter in parameters.values():
            parameter.grad = torch.full_like(parameter, float(number + 1))
        adamw.step()
    return adamw


def test_keeps_moments_in_float32_unless_asked_otherwise():
    assert isinstance(stepper([weights()], AdamW()), TorchAdamW)


def test_has_no_state_before_the_first_step():
    adamw = stepper([weights()], AdamW())
    assert adamw.state() == {}
    assert adamw.fits(set(), steps=0)
    assert not adamw.fits(set(), steps=1)


def test_holds_both_moments_of_every_parameter_in_state():
    adamw = stepped(weights(), 1)
    assert sorted(adamw.state()) == ["exp_avg.b", "exp_avg.w", "exp_avg_sq.b", "exp_avg_sq.w"]
    assert adamw.fits(set(adamw.state()), steps=1)


@pytest.mark.parametrize("lost", ["exp_avg.b", "exp_avg_sq.w"])
def test_rejects_state_that_lacks_a_moment(lost):
    adamw = stepped(weights(), 1)
    assert not adamw.fits(set(adamw.state()) - {lost}, steps=1)
    assert not adamw.fits({*adamw.state(), "exp_avg.other"}, steps=1)


def test_continues_to_same_bits_with_restored_optimizer():
    straight, broken_off = weights(), weights()
    stepped(straight, 5)
    state = stepped(broken_off, 2).state()
    resumed = stepper([broken_off], AdamW())
    resumed.restore(state, steps=2)
    resumed.groups[0]["lr"] = 0.1
    for number in range(2, 5):
        for parameter in broken_off.values():
            parameter.grad = torch.full_like(parameter, float(number + 1))
        resumed.step()
    assert all(torch.equal(straight[name], broken_off[name]) for name in straight)


def test_clears_gradients():
    parameters = weights()
    adamw = stepped(parameters, 1)
    adamw.clear()
    assert all(parameter.grad is None for parameter in parameters.values())
