import pytest
import torch
from torch import nn
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

from backend.compute.cpu.fast_norms import speed_up_norms


def qwen3(seed=0):
    torch.manual_seed(seed)
    norm = Qwen3RMSNorm(16, eps=1e-3)
    norm.weight.data.normal_()
    return norm


@pytest.mark.parametrize("shape", [(5, 16), (2, 3, 4, 16)])
def test_matches_original_output_and_gradients(shape):
    slow, fast = qwen3(), qwen3()
    assert speed_up_norms(nn.Sequential(fast)) == 1
    results = []
    for norm in (slow, fast):
        torch.manual_seed(1)
        states = torch.randn(shape, requires_grad=True)
        out = norm(states)
        (out * torch.randn(shape)).sum().backward()
        results.append((out.detach(), states.grad, norm.weight.grad))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_leaves_norm_that_computes_something_else_alone():
    norm = Gemma2RMSNorm(16)  # multiplies by 1 + weight
    norm.variance_epsilon = norm.eps
    assert speed_up_norms(nn.Sequential(norm, nn.LayerNorm(16), nn.Linear(16, 16))) == 0


def test_leaves_gated_norms_unchanged():
    torch.manual_seed(0)
    states, gate = torch.randn(2, 4, 16)
    assert speed_up_norms(Qwen3NextRMSNormGated(16)) == 0
    slow, fast = MambaRMSNormGated(16), MambaRMSNormGated(16)
    speed_up_norms(fast)
    assert torch.equal(fast(states, gate), slow(states, gate))
    assert torch.equal(fast(states, gate=gate), slow(states, gate))
    assert not torch.allclose(fast(states), fast(states, gate))


def test_keeps_original_computation_for_other_types():
    slow, fast = qwen3(), qwen3()
    speed_up_norms(fast)
    states = torch.randn(4, 16).bfloat16()
    assert torch.equal(fast(states), slow(states))
