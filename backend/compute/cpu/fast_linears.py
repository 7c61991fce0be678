"""Linear layers through oneDNN on CPUs, for learner and transformers engine.

torch computes float32 matrix products with MKL, which leaves a good part of an AMD processor with AVX-512
unused; oneDNN, which is part of torch too, uses all of it, and rounds a row in the same way in any batch. A
layer is replaced only after a check that it computes the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from backend.compute.cpu import CPU_KERNELS

_TOLERANCE = 1e-5
"""Relative to the largest output."""


def all_through_onednn(model: nn.Module) -> bool:
    """Whether an earlier `speed_up_linears` switched every linear layer of a model to oneDNN."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return _ONEDNN and all("forward" in vars(layer) for layer in layers)


def speed_up_linears(model: nn.Module) -> int:
    """Replace the forward pass of the plain float32 linear layers in a model; return how many there were."""
    replaced = 0
    for module in model.modules():
        if type(module) is nn.Linear and _is_served(module.weight) and _is_the_same(module):
            module.forward = _forward_of(module)  # type: ignore[method-assign]
            replaced += 1
    return replaced


def linear(states: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `states @ weight.T + bias` in the fastest available way, without gradients.

    Args:
        states: [..., in].
        weight: [out, in]; may be a transposed view.
        bias: [out].

    Returns:
        [..., out].
    """
    return product(states, weight, bias, _ONEDNN and _is_served(states) and _is_served(weight))


def gradient_product(gradient: Tensor, other: Tensor) -> Tensor:
    """Return `gradient @ other.T` in the fastest available way.

    Unlike `linear`, its rounding does not have to match the engine's: only a forward pass's does.

    Args:
        gradient: [..., n].
        other: [m, n]; may be a transposed view.

    Returns:
        [..., m].
    """
    return linear(gradient, other) if _GRADIENTS_THROUGH_ONEDNN else functional.linear(gradient, other)


def _through_onednn(states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # What torch's own compiler emits on a CPU; for float32 there is no other way to oneDNN.
    outputs: Tensor = torch.ops.mkldnn._linear_pointwise(states, weight, bias, "none", [], "")
    return outputs


def _is_served(tensor: Tensor) -> bool:
    return tensor.dtype == torch.float32 and tensor.device.type == "cpu" and tensor.numel() > 0


def _onednn_is_there() -> bool:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    try:
        found = _through_onednn(torch.eye(2), torch.eye(2), None)
    except (RuntimeError, AttributeError):
        return False
    return torch.equal(found, torch.eye(2))


_ONEDNN = CPU_KERNELS and _onednn_is_there()
# With AVX2 alone MKL takes 0.64 to 0.92 of the time of oneDNN for gradients (an EPYC, 256 to 1,024 features).
# By instruction set and not by a measurement: where the two are about as fast (0.6 to 1.2 on a Xeon with
# AVX-512, in two runs), a job could resume in a process that measured the opposite, with other bits.
_GRADIENTS_THROUGH_ONEDNN = _ONEDNN and torch.backends.cpu.get_cpu_capability() != "AVX2"

# If torch has no oneDNN, its compiler must not see the name.
if _ONEDNN:

    def product(states: Tensor, weight: Tensor, bias: Tensor | None, onednn: bool) -> Tensor:
        """Return `linear` in one of the two ways; can be compiled, see `backend.compute.cpu.compiled`."""
        if onednn:
            return _through_onednn(states, weight, bias)
        return functional.linear(states, weight, bias)

else:

    def product(states: Tensor, weight: Tensor, bias: Tensor | None, onednn: bool) -> Tensor:
        """Return `linear`; can be compiled, see `backend.compute.cpu.compiled`."""
        return functional.linear(states, weight, bias)


def _is_the_same(module: nn.Linear) -> bool:
    probe = torch.randn(3, module.in_features, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = module(probe)
        furthest = (linear(probe, module.weight, module.bias) - expected).abs().max()
    return bool(furthest <= _TOLERANCE * expected.abs().max().clamp(min=1.0))


def _forward_of(module: nn.Linear) -> Any:
    def forward(states: Tensor) -> Tensor:
        # Read each time: the engine exchanges the weights.
        if not torch.is_grad_enabled():
            return linear(states, module.weight, module.bias)
        # As rows: for other shapes oneDNN returns a view, to which a model could not write afterwards.
        rows = states.reshape(-1, states.shape[-1])
        out: Tensor = _Linear.apply(rows, module.weight, module.bias)  # type: ignore[no-untyped-call]
        return out.view(*states.shape[:-1], out.shape[-1])

    return forward


class _Linear(torch.autograd.Function):
    """`linear`, with gradients from `gradient_product`."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(states if weight.requires_grad else None, weight)
        return linear(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        states, weight = ctx.saved_tensors
        (gradient,) = gradients
        flat = gradient.reshape(-1, gradient.shape[-1])  # [rows, out]
        into_states = into_weight = into_bias = None
        if ctx.needs_input_grad[0]:
            into_states = gradient_product(gradient, weight.t())
        if ctx.needs_input_grad[1]:
            into_weight = gradient_product(flat.t(), states.reshape(-1, states.shape[-1]).t())
        if ctx.needs_input_grad[2]:
            into_bias = flat.sum(0)
        return into_states, into_weight, into_bias
