import pytest
import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from backend.learner.activations import kept_bytes
from backend.learner.swiglu import slim_swiglu

TOKENS, HIDDEN, INNER = 6, 8, 24
X = torch.linspace(-1, 1, HIDDEN)[None]


def layer(activation="silu", dtype=torch.float32):
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=HIDDEN, intermediate_size=INNER, num_attention_heads=1, hidden_act=activation
    )
    return LlamaMLP(config).to(dtype)


def results(module, dtype):
    torch.manual_seed(1)
    states = torch.randn(2, TOKENS, HIDDEN, dtype=dtype, requires_grad=True)
    out = module(states)
    (out * torch.randn(out.shape, dtype=dtype)).sum().backward()
    return [out, states.grad, *(weight.grad for weight in module.parameters() if weight.requires_grad)]


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matches_original_output_and_gradients_to_the_bit(dtype, frozen):
    original, slim = layer(dtype=dtype), layer(dtype=dtype)
    assert slim_swiglu(nn.Sequential(slim)) == 1
    for module in (original, slim):
        module.gate_proj.requires_grad_(not frozen)
    for found, expected in zip(results(slim, dtype), results(original, dtype), strict=True):
        assert torch.equal(found, expected)


def test_keeps_one_inner_tensor_less_per_layer():
    slim = layer()

    def kept():
        return kept_bytes(slim, lambda: slim(torch.ones(TOKENS, HIDDEN)))

    before = kept()
    slim_swiglu(nn.Sequential(slim))
    assert before - kept() == TOKENS * INNER * 4


def test_uses_what_is_put_around_the_linear_layers_later():
    slim = layer()
    slim_swiglu(nn.Sequential(slim))
    for linear in (slim.gate_proj, slim.up_proj, slim.down_proj):
        linear.register_forward_hook(lambda _, given, out: out + 1)
    again = layer()
    expected = again.down_proj(torch.nn.functional.silu(again.gate_proj(X) + 1) * (again.up_proj(X) + 1)) + 1
    torch.testing.assert_close(slim(X), expected)


@pytest.mark.parametrize("weight", [None, 0.0])
def test_leaves_another_activation_alone(weight):
    other = layer("gelu_pytorch_tanh")
    if weight is not None:
        for parameter in other.parameters():
            nn.init.constant_(parameter, weight)
    assert slim_swiglu(nn.Sequential(other, nn.Linear(3, 3))) == 0


def test_leaves_layer_that_does_more_alone():
    class Scaled(LlamaMLP):
        def forward(self, x):
            return 2 * super().forward(x)

    assert slim_swiglu(nn.Sequential(Scaled(layer().config))) == 0
