import pytest
import torch
from torch import nn

from backend.compute.cpu.fast_linears import linear, speed_up_linears


@pytest.mark.parametrize("shape", [(5, 16), (2, 3, 16), (1, 16)])
@pytest.mark.parametrize("bias", [True, False])
def test_matches_original_output_and_gradients(shape, bias):
    results = []
    for fast in (False, True):
        torch.manual_seed(0)
        layer = nn.Linear(16, 24, bias=bias)
        assert not fast or speed_up_linears(nn.Sequential(layer)) == 1
        states = torch.randn(shape, requires_grad=True)
        out = layer(states)
        (out * torch.randn(out.shape)).sum().backward()
        results.append((out.detach(), states.grad, *(p.grad for p in layer.parameters())))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_agrees_with_finite_differences():
    torch.manual_seed(0)
    layer = nn.Linear(4, 3)
    speed_up_linears(nn.Sequential(layer))
    states = torch.randn(2, 4, requires_grad=True)
    out = layer(states)
    weights = torch.randn(out.shape)
    (out * weights).sum().backward()
    with torch.no_grad():
        for tensor in (states, layer.weight, layer.bias):
            for index in range(tensor.numel()):
                values = []
                for change in (1e-2, -2e-2):
                    tensor.view(-1)[index] += change
                    values.append(float((layer(states) * weights).sum()))
                tensor.view(-1)[index] += 1e-2
                slope = (values[0] - values[1]) / 2e-2
                assert abs(slope - float(tensor.grad.view(-1)[index])) < 1e-3


def test_uses_weights_that_are_put_in_later():
    layer = nn.Linear(4, 4, bias=False)
    speed_up_linears(nn.Sequential(layer))
    layer._parameters["weight"] = torch.eye(4) * 3
    with torch.no_grad():
        assert torch.equal(layer(torch.ones(2, 4)), torch.full((2, 4), 3.0))


def test_gives_no_gradient_to_frozen_weights():
    layer = nn.Linear(4, 4).requires_grad_(False)
    speed_up_linears(nn.Sequential(layer))
    states = torch.randn(2, 4, requires_grad=True)
    layer(states).sum().backward()
    assert layer.weight.grad is None
    torch.testing.assert_close(states.grad, layer.weight.sum(0).expand(2, 4))


def test_lets_callers_write_into_the_output_of_layer():
    layer = nn.Linear(4, 4)
    speed_up_linears(nn.Sequential(layer))
    states = torch.ones(2, 3, 4, requires_grad=True)
    out = layer(states)
    out += states
    out[1:] *= 2
    out.sum().backward()
    expected = (layer.weight.detach().sum(0) + 1) * torch.tensor([1.0, 2.0])[:, None, None]
    torch.testing.assert_close(states.grad, expected.expand(2, 3, 4))


@pytest.mark.parametrize("kind", [torch.float64, torch.bfloat16])
def test_computes_other_types_as_ever(kind):
    layer = nn.Linear(8, 8).to(kind)
    assert speed_up_linears(nn.Sequential(layer)) == 0
    states = torch.randn(3, 8).to(kind)
    assert torch.equal(linear(states, layer.weight, layer.bias), layer(states))


def test_accepts_that_there_is_nothing_to_compute():
    layer = nn.Linear(8, 6)
    speed_up_linears(nn.Sequential(layer))
    states = torch.randn(0, 8, requires_grad=True)
    layer(states).sum().backward()
    assert states.grad.shape == (0, 8)


def test_leaves_layer_that_computes_something_else_alone():
    class Doubled(nn.Linear):
        def forward(self, states):
            return 2 * super().forward(states)

    assert speed_up_linears(nn.Sequential(Doubled(4, 4), nn.Embedding(4, 4))) == 0
