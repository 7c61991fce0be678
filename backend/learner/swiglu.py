"""SwiGLU layers (Shazeer 2020, arXiv:2002.05202) that keep two tensors for the backward pass, not three.

They account for most of the memory per token in Llama, Mistral and Qwen. The activation is recomputed in the
backward pass, which costs less than keeping it, with bitwise equal results.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


def slim_swiglu(model: nn.Module) -> int:
    """Replace the forward pass of a model's plain SwiGLU layers; return their number.

    A layer is only replaced after a check that the results are bitwise equal.
    """
    replaced = 0
    for module in model.modules():
        if _is_plain(module):
            module.forward = _forward_of(module)
            replaced += 1
    return replaced


def _is_plain(module: Any) -> bool:
    linears = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    activation = getattr(module, "act_fn", None)
    if activation is None or not all(isinstance(layer, nn.Linear) for layer in linears):
        return False
    weight = module.gate_proj.weight
    dtype = weight.dtype if weight.is_floating_point() else torch.float32  # else it is packed in fewer bits
    probe = torch.randn(3, module.gate_proj.in_features, generator=torch.Generator().manual_seed(0))
    probe = probe.to(weight.device, dtype)
    with torch.no_grad():
        # The activation is also checked by itself: with zero weights every activation gives the same result.
        return torch.equal(activation(probe), functional.silu(probe)) and torch.equal(
            _forward_of(module)(probe), module(probe)
        )


def _forward_of(module: Any) -> Any:
    def forward(states: Tensor) -> Tensor:
        # Read on every call: adapters wrap the linear layers later.
        hidden: Tensor = _Gated.apply(module.gate_proj(states), module.up_proj(states))  # type: ignore[no-untyped-call]
        out: Tensor = module.down_proj(hidden)
        return out

    return forward


class _Gated(torch.autograd.Function):
    """`silu(gate) * up`."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None]:
        gate, up = ctx.saved_tensors
        (gradient,) = gradients
        into_gate = into_up = None
        if ctx.needs_input_grad[1]:
            into_up = functional.silu(gate).mul_(gradient)
        if ctx.needs_input_grad[0]:
            into_gate = torch.ops.aten.silu_backward(gradient * up, gate)
        return into_gate, into_up
