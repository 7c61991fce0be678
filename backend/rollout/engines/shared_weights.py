"""Full policies in memory that vLLM's processes read too, which need no copy of their own.

On the CPU that is a file, in shared memory where there is room; on a GPU a piece of its memory, by CUDA IPC.
Whoever shares says how to open it in a message that JSON can carry.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Opening = dict[str, Any]
"""How another process opens shared weights: `tensors` are name, dtype, shape and first byte of each; `bytes`
is the length of all; `file` or `cuda` is where they lie."""
_ALIGNMENT = 64
"""Where a tensor begins, in bytes: at least a multiple of what one of its elements takes."""


def share_in_file(tensors: Mapping[str, Tensor], path: Path) -> Opening:
    """Write tensors into a new file that only this user can read; those that read it map it into memory.

    Raises:
        OSError: There is no room, or the file exists.
    """
    places, parts, length = _places(tensors)
    with open(path, "xb", opener=_private) as file:
        for part, start in parts:
            file.seek(start)
            file.write(part.cpu().numpy().data)
        file.truncate(length)
    return {"tensors": places, "bytes": length, "file": str(path)}


def share_on_device(tensors: Mapping[str, Tensor], device: torch.device) -> tuple[Tensor, Opening]:
    """Copy tensors to a GPU; return the memory, which whoever shares must keep, and how to open it.

    Raises:
        RuntimeError: There is no room (`torch.OutOfMemoryError`), or this GPU's memory cannot be shared.
    """
    places, parts, length = _places(tensors)
    memory = torch.empty(length, dtype=torch.uint8, device=device)
    for part, start in parts:
        memory[start : start + part.nbytes].copy_(part)
    torch.cuda.synchronize(device)
    storage: Any = memory.untyped_storage()
    _, handle, size, offset, counter, place, event, _ = storage._share_cuda_()
    # torch keeps the memory until everybody who opened it says goodbye, which one that was killed never does.
    # Here it is kept by who shares, until each of them has said that it reads it no more, or has ended.
    storage._release_ipc_counter_cuda(counter, place)
    # Nobody waits for an event: what was copied is there.
    cuda = [handle.hex(), size, offset, counter.hex(), place, event.hex()]
    return memory, {"tensors": places, "bytes": length, "cuda": cuda}


def open_weights(opening: Opening) -> dict[str, Tensor]:
    """Return the tensors by name, as views of the memory that is shared; nobody may write to them.

    Of a GPU's memory on the first GPU that this process sees, which must be the one that it was shared on.
    """
    memory = _open_file(opening) if "file" in opening else _open_device(opening)
    tensors = {}
    for name, dtype, shape, start in opening["tensors"]:
        kind = getattr(torch, dtype)
        stop = start + math.prod(shape) * kind.itemsize
        tensors[name] = memory[start:stop].view(kind).view(shape)
    return tensors


def _open_file(opening: Opening) -> Tensor:
    return torch.from_file(opening["file"], shared=False, size=opening["bytes"], dtype=torch.uint8)


def _open_device(opening: Opening) -> Tensor:
    handle, size, offset, counter, place, event = opening["cuda"]
    memory = torch.empty(0, dtype=torch.uint8, device="cuda:0")
    new: Any = torch.UntypedStorage._new_shared_cuda
    as_bytes = bytes.fromhex
    storage = new(0, as_bytes(handle), size, offset, as_bytes(counter), place, as_bytes(event), False)
    return memory.set_(storage)


def _places(
    tensors: Mapping[str, Tensor],
) -> tuple[list[tuple[str, str, list[int], int]], list[tuple[Tensor, int]], int]:
    """Return where each tensor will lie, the bytes to put there with their beginnings, and the length of all.

    Tied parameters are one tensor under two names, which lies in one place.
    """
    places, parts, end = [], [], 0
    known: dict[tuple[Any, ...], int] = {}
    for name, tensor in tensors.items():
        dtype, shape = str(tensor.dtype).removeprefix("torch."), list(tensor.shape)
        same = (tensor.data_ptr(), dtype, *shape, *tensor.stride())
        if tensor.numel() and same not in known:
            known[same] = end
            parts.append((tensor.detach().contiguous().reshape(-1).view(torch.uint8), end))
            end += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        places.append((name, dtype, shape, known.get(same, 0)))
    return places, parts, max(end, 1)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
