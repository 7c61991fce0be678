"""The safetensors files of a model directory, from their headers; does not import torch.

Weights are read with plain reads, never mapped: truncating a file while it is read must not crash the
process. The files also say how much memory a pool of the model will need.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tinkergym.basics.user_json import read_json
from tinkergym.errors import UnknownModelError

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_MOST_HEADER_BYTES = 100_000_000
"""The limit of the safetensors library."""
_MOST_INDEX_BYTES = 100_000_000
_MOST_DIMENSIONS = 64
_LARGEST_NUMBER = 2**63 - 1
_CHUNK_BYTES = 1 << 22
_READERS = 4
_SAMPLED = 64
_INSTEAD = "download the model again, or write it again with save_pretrained"

_BITS = {"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U8": 8}
"""Other types, which pack their numbers, are not checked."""
_EXPONENTS = {
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
    "F32": ("<u4", 0x7F80_0000),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
}
"""A number whose exponent bits are all set is NaN or infinite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Position of a tensor."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    """Bytes from the file's start."""
    end: int


def stored_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Return the tensors that transformers would load from a model directory, by name.

    Raises:
        UnknownModelError: Files are missing, truncated, or not in this format.
    """
    if (directory / WHOLE).is_file():
        return tensors_of_file(directory / WHOLE)
    files = _files_of_index(directory)
    tensors: dict[str, StoredTensor] = {}
    for file, wanted in files.items():
        if not (directory / file).is_file():
            raise _broken(f"{INDEX} names {file!r}, which is not there")
        found = tensors_of_file(directory / file)
        if missing := sorted(wanted - found.keys()):
            raise _broken(f"{INDEX} says that {file!r} contains {missing[0]!r}, but it does not")
        tensors |= {name: found[name] for name in wanted}
    return tensors


def has_all_weights(directory: Path) -> bool:
    """Whether all files of a model's weights are there: a download that was interrupted leaves some out."""
    if (directory / WHOLE).is_file():
        return True
    try:
        return all((directory / file).is_file() for file in _files_of_index(directory))
    except UnknownModelError:  # Without an index.
        return False


def tensors_of_file(path: Path, *, most_header_bytes: int = _MOST_HEADER_BYTES) -> dict[str, StoredTensor]:
    """Return the tensors of one file, by name.

    Raises:
        UnknownModelError: It is truncated, or not in this format.
    """
    try:
        size = path.stat().st_size
        length, header = _header(path, size, most_header_bytes)
        tensors = {
            name: _stored(path, 8 + length, entry) for name, entry in header.items() if name != "__metadata__"
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise _broken(f"{path.name!r} is not a safetensors file: {error}") from error
    end = max((tensor.end for tensor in tensors.values()), default=0)
    if end > size:
        raise _cut_off(path, end - size)
    return tensors


def first_not_finite(tensors: dict[str, StoredTensor], *, most_bytes: int | None) -> str | None:
    """Return the name of a tensor that contains NaN or infinity, if there is one.

    Args:
        tensors: From `stored_tensors`.
        most_bytes: A larger model is not checked; None checks all.
    """
    known = {name: tensor for name, tensor in tensors.items() if tensor.dtype in _EXPONENTS}
    size = sum(tensor.end - tensor.begin for tensor in known.values())
    if most_bytes is not None and size > most_bytes:
        return None
    with ThreadPoolExecutor(_READERS) as readers:
        finite = readers.map(_is_finite, known.values())
        found = next((name for name, well in zip(known, finite, strict=True) if not well), None)
        # Up to a gigabyte is left to read, which can no longer change the answer.
        readers.shutdown(cancel_futures=True)
    return found


def _is_finite(tensor: StoredTensor) -> bool:
    width, exponent = _EXPONENTS[tensor.dtype]
    mask = np.array(exponent, dtype=width)
    return not any((np.frombuffer(chunk, dtype=width) & mask == mask).any() for chunk in chunks_of(tensor))


def weights_sample_sha256(tensors: Mapping[str, StoredTensor]) -> str:
    """Identify a model by its tensors' names and shapes and some of their values.

    How the files are divided, and whether their types are wider than the values need, makes no difference.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        with tensor.file.open("rb") as file:
            file.seek(tensor.begin)
            sample = file.read(min(tensor.end - tensor.begin, _SAMPLED * _BITS.get(tensor.dtype, 8) // 8))
        digest.update(f"{name}|{tensor.shape}|".encode())
        digest.update(as_float32(tensor.dtype, sample))
    return digest.hexdigest()


def as_float32(dtype: str, values: bytes) -> bytes:
    """Return numbers of one of the common types as float32; others as they are."""
    if dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(values, dtype="<u2").astype("<u4") << 16).tobytes()
    wider = {"F16": "<f2", "F64": "<f8"}.get(dtype)
    return values if wider is None else np.frombuffer(values, dtype=wider).astype("<f4").tobytes()


def chunks_of(tensor: StoredTensor) -> Iterator[bytes]:
    """Read a tensor's bytes in pieces of a whole number of values.

    Raises:
        UnknownModelError: The file was truncated meanwhile.
    """
    with tensor.file.open("rb") as file:
        file.seek(tensor.begin)
        left = tensor.end - tensor.begin
        while left > 0:
            wanted = min(left, _CHUNK_BYTES)
            chunk = file.read(wanted)
            if len(chunk) < wanted:
                raise _cut_off(tensor.file, left - len(chunk))
            yield chunk
            left -= wanted


def _files_of_index(directory: Path) -> dict[str, set[str]]:
    """Return the names of the tensors in each file of a sharded model."""
    index = directory / INDEX
    if not index.is_file():
        raise UnknownModelError(
            f"the model has neither {WHOLE} nor {INDEX}, only other *.safetensors files",
            hint="write it with save_pretrained, which names its files so",
            field="model",
        )
    try:
        files: dict[str, set[str]] = {}
        for tensor, file in json.loads(_beginning(index, _MOST_INDEX_BYTES))["weight_map"].items():
            files.setdefault(file, set()).add(tensor)
        if odd := next((file for file in files if Path(file).name != file), None):
            raise _broken(f"{INDEX} names {odd[:200]!r}, which is not a file next to it")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _broken(f"{INDEX} is not a valid index of weights: {error}") from error
    if not files:
        raise _broken(f"{INDEX} names no weights")
    return files


def _beginning(path: Path, most_bytes: int) -> bytes:
    with path.open("rb") as file:
        return file.read(most_bytes)  # A truncated header is not valid JSON any more.


def _header(path: Path, size: int, most_bytes: int) -> tuple[int, Any]:
    if not path.is_file():
        raise ValueError("it is not a regular file")  # Opening a pipe would wait for its writer.
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > size - 8:
            raise ValueError(f"its header has {length} bytes, but the file only {size}")
        if length > most_bytes:
            raise ValueError(f"its header has {length} bytes, more than {most_bytes}")
        return length, read_json(file.read(length))


def _stored(path: Path, start: int, entry: Any) -> StoredTensor:
    dtype, shape = entry["dtype"], tuple(entry["shape"])
    begin, end = entry["data_offsets"]
    if len(shape) > _MOST_DIMENSIONS or max((*shape, begin, end)) > _LARGEST_NUMBER:
        raise ValueError("a tensor has a shape or place that no tensor has")  # their product could take hours
    if not all(isinstance(number, int) and number >= 0 for number in (*shape, begin, end)) or end < begin:
        raise ValueError("a tensor has no place")
    if dtype in _BITS and (end - begin) * 8 != prod(shape) * _BITS[dtype]:
        raise ValueError(f"a tensor of shape {list(shape)} and type {dtype} has {end - begin} bytes")
    return StoredTensor(file=path, dtype=dtype, shape=shape, begin=start + begin, end=start + end)


def _cut_off(path: Path, missing: int) -> UnknownModelError:
    return _broken(f"{path.name!r} is truncated: its last {missing} bytes are missing")


def _broken(what: str) -> UnknownModelError:
    return UnknownModelError(what, hint=_INSTEAD, field="model")


_POOL_BYTES = 10**9
"""Memory of a pool and its environment workers, excluding the weights."""


def expected_bytes(model: str, models: Mapping[str, str]) -> int:
    """Return the memory that a model's pool needs; unknown for models from the hub before their download.

    Args:
        model: A name, a folder or a hub id.
        models: Folder of the named models.
    """
    weights = 0
    # A folder that was removed or changed is reported by the pool; other models are waiting.
    with suppress(OSError, RuntimeError, ValueError):
        folder = Path(models.get(model, model)).expanduser()
        weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return _POOL_BYTES + weights
