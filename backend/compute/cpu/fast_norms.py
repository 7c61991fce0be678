"""RMS normalization in half the passes over memory, for learner and transformers engine.

On a CPU the decoder's small steps cost as much as its smaller matrix products, and most of them are norms. A
module is replaced only after a check that it computes the same, so variants with a bias or a shifted weight
keep their own code.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from backend.compute.cpu import CPU_KERNELS

_TOLERANCE = 1e-5


def speed_up_norms(model: nn.Module) -> int:
    """Replace the forward pass of the plain float32 RMS norms in a model; return how many there were."""
    replaced = 0
    if not CPU_KERNELS:
        return replaced
    for module in model.modules():
        eps = getattr(module, "variance_epsilon", None)
        weight = getattr(module, "weight", None)
        if isinstance(eps, float) and isinstance(weight, nn.Parameter) and _is_plain(module, weight, eps):
            module.forward = _forward_of(module, eps)
            replaced += 1
    return replaced


def _is_plain(module: nn.Module, weight: nn.Parameter, eps: float) -> bool:
    if weight.dim() != 1 or weight.dtype != torch.float32 or list(module.parameters()) != [weight]:
        return False
    generator = torch.Generator().manual_seed(0)
    probe = torch.randn(3, weight.shape[0], generator=generator).to(weight.device) * 3
    with torch.no_grad():
        try:
            expected = module(probe)
        except TypeError:  # A gated norm also needs its gate.
            return False
        return torch.allclose(_RMSNorm.apply(probe, weight, eps), expected, rtol=_TOLERANCE, atol=_TOLERANCE)  # type: ignore[no-untyped-call]


def _forward_of(module: nn.Module, eps: float) -> Any:
    original = module.forward

    def forward(states: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
        # Some have an optional gate.
        if states.dtype != torch.float32 or others or named:
            slow: torch.Tensor = original(states, *others, **named)
            return slow
        if not torch.is_grad_enabled():
            return over_rms(states, eps)[0].mul_(cast(torch.Tensor, module.weight))
        out: torch.Tensor = _RMSNorm.apply(states, module.weight, eps)  # type: ignore[no-untyped-call]
        return out

    return forward


def over_rms(states: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `states / rms(states)` and the inverse of the latter; can be compiled by `torch.jit.script`."""
    # Rounded step by step as in transformers, and the same way in learner and engine, whose logprobs are
    # compared.
    mean = states.square().sum(-1, keepdim=True).div_(states.shape[-1])
    inverse = torch.rsqrt(mean.add_(eps))
    return states * inverse, inverse


class _RMSNorm(torch.autograd.Function):
    """`states / rms(states) * weight` over the last dimension."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        normed, inverse = over_rms(states, eps)
        ctx.save_for_backward(normed, inverse, weight)
        return normed * weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None, None]:
        normed, inverse, weight = ctx.saved_tensors
        (gradient,) = gradients
        size = weight.shape[0]
        along = gradient * normed  # [..., dim]
        into_weight = None
        if ctx.needs_input_grad[1]:
            into_weight = along.reshape(-1, size).T @ along.new_ones(along.numel() // size)
        into_states = None
        if ctx.needs_input_grad[0]:
            # The norm removes the component along the input.
            radial = (along @ weight).div_(size).unsqueeze_(-1)  # [..., 1]
            into_states = (gradient * weight).addcmul_(normed, radial, value=-1).mul_(inverse)
        return into_states, into_weight, None
