"""Tensors that are divided over the ranks of a group (DTensors), and such as are not, handled alike.

Every rank must ask for the same tensors in the same order: to put one together, all take part.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def is_divided(tensor: Tensor) -> bool:
    """Whether each rank holds a part of it."""
    return isinstance(tensor, DTensor)


def whole(tensor: Tensor) -> Tensor:
    """Return all of a tensor, or the number that it stands for, on each rank."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def on_cpu(tensor: Tensor, *, copy: bool = False) -> Tensor:
    """Return all of a tensor on the CPU; of a divided one only the first rank gets more than the shape."""
    tensor = tensor.detach()
    if not isinstance(tensor, DTensor):
        return tensor.to("cpu", copy=copy)
    found = tensor.full_tensor()
    # Memory for as many models as there are ranks would be taken if each kept what only one writes.
    return found.to("cpu") if dist.get_rank() == 0 else torch.empty_like(found, device="meta")


def laid_out_as(like: Tensor, tensor: Tensor) -> Tensor:
    """Return a copy of a tensor where `like` is, and if that is divided, this rank's part of it."""
    if not isinstance(like, DTensor):
        return tensor.to(like.device, copy=True)
    # Each rank has all of it, so nobody need send anything. What this finds is a view of all of it.
    own = distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None).to_local()
    return DTensor.from_local(
        own.to(like.device, copy=True),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
