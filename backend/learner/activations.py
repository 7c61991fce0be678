"""The memory of a learner's forward pass: how much of it a token takes, and how many tokens fit.

What a forward keeps for the backward pass is seen in one of a few tokens, not worked out from a model's
numbers. Where too few tokens would fit, each layer keeps its input only and is run a second time (gradient
checkpointing): up to half as much computing again, for a fraction of the memory.

On a CPU it counts how much memory there is, not how much is free at the moment: how a batch is cut decides
the last bits of its gradient, and a job that is resumed shall find the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from backend.compute.memory import machine_bytes
from backend.learner.shared_attention import attending, layout_in_use

MOST_TOKENS = 4096
"""More at a time make no product faster."""
MOST_PADDED_TOKENS = 2048
"""In padded rows; attention that is not fused keeps more for each token there, the longer they are."""
_FEWEST_TOKENS = 512
"""With fewer, products are slow, and to compute layers twice costs less."""
_PART_OF_A_CPUS_MEMORY = 8
_PART_OF_A_GPUS_MEMORY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatching:
    """How a learner computes a train batch."""

    tokens: int
    """Most that are computed at a time."""
    recompute: bool
    """Whether layers keep their inputs only and are run again in the backward pass."""


def micro_batching(
    bytes_per_token: int, *, layers: int, bytes_between_layers: int, room: int, most: int = MOST_TOKENS
) -> MicroBatching:
    """Fit micro-batches into memory.

    Args:
        bytes_per_token: What a forward of the decoder keeps, see `kept_bytes`.
        layers: That can be run again, of about equal size.
        bytes_between_layers: Of a token's hidden state.
        room: Bytes, see `room_for_activations`.
        most: Tokens, however much room there is.
    """
    tokens = _power_of_two(room // max(bytes_per_token, 1))
    if tokens >= _FEWEST_TOKENS or not layers:
        return MicroBatching(tokens=min(tokens, most), recompute=False)
    # One layer whole, and of each what goes in.
    each = bytes_per_token // layers + bytes_between_layers * layers
    tokens = _power_of_two(room // max(each, 1))
    return MicroBatching(tokens=min(tokens, most), recompute=True)


def kept_bytes(model: torch.nn.Module, run: Callable[[], torch.Tensor]) -> int:
    """Return how many bytes a run of a model leaves: its output, and what a backward pass needs of it."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), saved_tensors_hooks(note, lambda tensor: tensor):
        note(run())
    return sum(kept.values())


def layers_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return a model's layers, as far as transformers lets them be run again."""
    return [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]


def recompute(model: torch.nn.Module) -> None:
    """Let each layer of a model keep its input only, where gradients are wanted."""
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
            # There is no dropout: nothing is drawn.
            preserve_rng_state=False,
            # By then the batch's layout is not in use any more, and on a GPU it is another thread.
            context_fn=lambda: (nullcontext(), attending(layout)),
            **options,
        )

    return checkpointed


def room_for_activations(device: torch.device) -> int:
    """Return how many bytes may be kept: an eighth of a machine's memory, half of what a GPU has free now.

    On a GPU the base model is loaded by then; policies and engines take what they need from the other half.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) // _PART_OF_A_GPUS_MEMORY
    return machine_bytes() // _PART_OF_A_CPUS_MEMORY


def _power_of_two(number: int) -> int:
    return 1 << max(number, 1).bit_length() - 1
