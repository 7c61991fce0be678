"""Handle tensors divided over the ranks of a group (DTensors) and ordinary ones alike.

Every rank must ask for the same tensors in the same order, because all take part in gathering one.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def is_divided(tensor: Tensor) -> bool:
    """Return whether each rank has a part of it."""
    return isinstance(tensor, DTensor)


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor or number on each rank."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def on_cpu(tensor: Tensor, *, copy: bool = False) -> Tensor:
    """Return the full tensor on the CPU; of a divided one only the first rank gets more than the shape."""
    tensor = tensor.detach()
    if not isinstance(tensor, DTensor):
        return tensor.to("cpu", copy=copy)
    found = tensor.full_tensor()
    # If each rank kept what only one writes, this would use memory for as many models as ranks.
    return found.to("cpu") if dist.get_rank() == 0 else torch.empty_like(found, device="meta")


def laid_out_as(like: Tensor, tensor: Tensor) -> Tensor:
    """Return a copy of a tensor on the device of `like`, or this rank's part if that is divided."""
    if not isinstance(like, DTensor):
        return tensor.to(like.device, copy=True)
    # Each rank has the full tensor, so nothing is sent. The result is a view of the full tensor.
    own = distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None).to_local()
    return DTensor.from_local(
        own.to(like.device, copy=True),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )
