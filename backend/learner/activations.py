"""The memory of a learner's forward pass: the cost per token, and how many tokens fit.

The memory kept for the backward pass is measured with a few tokens rather than derived from a model's
dimensions. If too few tokens would fit, each layer only keeps its input and runs a second time (gradient
checkpointing): up to half as much computation again, for a fraction of the memory.

On a CPU only the total memory counts, not what is currently free: the way a batch is cut determines the last
bits of its gradient, and a resumed job must get the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from backend.learner.shared_attention import attending, layout_in_use
from backend.processes.memory import machine_bytes

_PART_OF_A_CPUS_MEMORY = 8
_PART_OF_A_GPUS_MEMORY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRange:
    """How many tokens a learner computes at a time, if memory allows."""

    most: int
    """More at a time do not make products faster."""
    fewest: int = 512
    """With fewer, products are slow, and computing layers twice costs less."""


_ON_CPU, _ON_GPU = TokenRange(most=4096), TokenRange(most=65_536, fewest=4096)
"""A GPU's are not measured. It has little to do with 512 tokens of a small model."""
_PADDED = 2
"""In padded rows, so many times fewer; unfused attention keeps more per token the longer they are."""


def limits_on(device_type: str, *, shares_prefixes: bool) -> TokenRange:
    """Return how many tokens are worth computing at a time on a kind of device.

    On a CPU they are constants: how a batch is cut determines the last bits of its gradient.
    """
    found = _ON_CPU if device_type == "cpu" else _ON_GPU
    return found if shares_prefixes else replace(found, most=found.most // _PADDED)


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatching:
    """How a learner computes a training batch."""

    tokens: int
    """Most tokens computed at a time."""
    recompute: bool
    """Whether layers only keep their inputs and run again in the backward pass."""


def micro_batching(
    bytes_per_token: int, *, layers: int, bytes_between_layers: int, room: int, limits: TokenRange = _ON_CPU
) -> MicroBatching:
    """Fit micro-batches into memory.

    Args:
        bytes_per_token: What a forward pass of the decoder keeps, see `kept_bytes`.
        layers: Number of layers that can run again, of about equal size.
        bytes_between_layers: Size of a token's hidden state.
        room: Bytes, see `room_for_activations`.
        limits: In tokens, regardless of memory.
    """
    tokens = _power_of_two(room // max(bytes_per_token, 1))
    if tokens >= limits.fewest or not layers:
        return MicroBatching(tokens=min(tokens, limits.most), recompute=False)
    # One whole layer, and the inputs of all.
    each = bytes_per_token // layers + bytes_between_layers * layers
    tokens = _power_of_two(room // max(each, 1))
    return MicroBatching(tokens=min(tokens, limits.most), recompute=True)


def kept_bytes(model: torch.nn.Module, run: Callable[[], torch.Tensor]) -> int:
    """Return the memory kept by a run of a model: its output, and what a backward pass needs."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            # By memory, not by tensor: several views of one piece are kept once.
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(note, lambda tensor: tensor):
        note(run())
    return sum(kept.values())


def layers_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return a model's layers if transformers allows them to run again."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def recompute(model: torch.nn.Module) -> None:
    """Make each layer of a model keep only its input when gradients are computed."""
    for layer in layers_of(model):
        layer.forward = _run_again_later(layer.forward)


def _run_again_later(forward: Callable[..., Any]) -> Callable[..., Any]:
    def checkpointed(*inputs: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs, **options)
        layout = layout_in_use()
        return checkpoint(
            forward,
            *inputs,
            use_reentrant=False,
            # There is no dropout, so no random state is needed.
            preserve_rng_state=False,
            # The batch's layout is no longer set by then, and on a GPU this is another thread.
            context_fn=lambda: (nullcontext(), attending(layout)),
            **options,
        )

    return checkpointed


def room_for_activations(device: torch.device) -> int:
    """Return the available memory: an eighth of a machine's memory, or half of a GPU's free memory.

    On a GPU the base model is already loaded; policies and engines use the other half.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) // _PART_OF_A_GPUS_MEMORY
    return machine_bytes() // _PART_OF_A_CPUS_MEMORY


def _power_of_two(number: int) -> int:
    return 1 << max(number, 1).bit_length() - 1
