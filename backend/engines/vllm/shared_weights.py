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
"""Tensors begin at multiples of it, in bytes, as the elements of every type must."""
_NO_COUNTER = b"/tinkergym-nobody-counts"
"""In place of torch's counter, which each reader lowers when it lets go, and none raises: below zero it means
that the memory is kept for ever. One that cannot be found is passed over."""


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
    torch.cuda.current_stream(device).synchronize()
    storage: Any = memory.untyped_storage()
    _, handle, size, offset, counter, place, _, _ = storage._share_cuda_()
    # torch would keep the memory until one reader has said goodbye, which one that was killed never does, and
    # until its processes end if a second one does. Here whoever shares keeps it as long as it may be read.
    storage._release_ipc_counter_cuda(counter, place)
    cuda = [_name_of(device), handle.hex(), size, offset]
    return memory, {"tensors": places, "bytes": length, "cuda": cuda}


def open_weights(opening: Opening) -> dict[str, Tensor]:
    """Return the tensors by name, as views of what is shared.

    Writing to those of a file changes them for this process alone; to those on a GPU nobody may write.

    Raises:
        RuntimeError: The file is gone, or the memory cannot be opened here.
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
    name, handle, size, offset = opening["cuda"]
    device = torch.device("cuda", 0)  # the only one that vLLM's processes use
    if _name_of(device) != name:
        raise RuntimeError(
            f"the weights lie on the GPU {name}, and this process computes on {_name_of(device)}"
        )
    new: Any = torch.UntypedStorage._new_shared_cuda
    # It is told of no event to wait for, what was copied is there; and of a counter that does not exist.
    storage = new(device.index, bytes.fromhex(handle), size, offset, _NO_COUNTER, 0, b"", False)
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def _name_of(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


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
