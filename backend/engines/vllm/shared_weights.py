"""Full policies in memory shared with vLLM's processes, which need no copy.

On the CPU this is a file, in shared memory if it fits; on a GPU it is GPU memory shared by CUDA IPC. The
owner describes how to open it in a JSON message.
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
"""How another process opens shared weights: `tensors` are the name, dtype, shape and first byte of each;
`bytes` is the total length; `file` or `cuda` is the location."""
_ALIGNMENT = 64
"""Alignment of tensors in bytes, as required by elements of every type."""
_NO_COUNTER = b"/tinkergym-nobody-counts"
"""Replaces torch's reference counter, which each reader decrements and none increments: below zero the memory
is kept forever. A missing counter is ignored."""


def share_in_file(tensors: Mapping[str, Tensor], path: Path) -> Opening:
    """Write tensors into a new file that only this user can read; readers map it into memory.

    Raises:
        OSError: There is no space, or the file exists.
    """
    places, parts, length = _places(tensors)
    with open(path, "xb", opener=_private) as file:
        for part, start in parts:
            file.seek(start)
            file.write(part.cpu().numpy().data)
        # Readers map `length` bytes, which includes the padding of the last tensor.
        file.truncate(length)
    return {"tensors": places, "bytes": length, "file": str(path)}


def share_on_device(tensors: Mapping[str, Tensor], device: torch.device) -> tuple[Tensor, Opening]:
    """Copy tensors to a GPU; return the memory, which the owner must keep, and how to open it.

    Raises:
        RuntimeError: There is not enough memory (`torch.OutOfMemoryError`), or this GPU's memory cannot be
            shared.
    """
    places, parts, length = _places(tensors)
    memory = torch.empty(length, dtype=torch.uint8, device=device)
    for part, start in parts:
        memory[start : start + part.nbytes].copy_(part)
    torch.cuda.current_stream(device).synchronize()
    storage: Any = memory.untyped_storage()
    _, handle, size, offset, counter, place, _, _ = storage._share_cuda_()
    # torch would keep the memory until a reader says that it is done, which a killed one never does, and with
    # a second reader until its processes end. Here the owner keeps it as long as it may be read.
    storage._release_ipc_counter_cuda(counter, place)
    cuda = [_name_of(device), handle.hex(), size, offset]
    return memory, {"tensors": places, "bytes": length, "cuda": cuda}


def open_weights(opening: Opening) -> dict[str, Tensor]:
    """Return the tensors by name, as views of the shared memory.

    Writing to tensors of a file changes them for this process only; tensors on a GPU must not be written to.

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
    device = torch.device("cuda", 0)  # the only device that vLLM's processes use
    if _name_of(device) != name:
        raise RuntimeError(f"the weights are on the GPU {name}, but this process uses {_name_of(device)}")
    new: Any = torch.UntypedStorage._new_shared_cuda
    # No event is passed, because the copy is complete, and a counter that does not exist.
    storage = new(device.index, bytes.fromhex(handle), size, offset, _NO_COUNTER, 0, b"", False)
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)


def _name_of(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)


def _places(
    tensors: Mapping[str, Tensor],
) -> tuple[list[tuple[str, str, list[int], int]], list[tuple[Tensor, int]], int]:
    """Return each tensor's location, the bytes to write with their offsets, and the total length.

    Tied parameters are one tensor under two names, which is stored once.
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
    # At least one byte: an empty file cannot be mapped.
    return places, parts, max(end, 1)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
