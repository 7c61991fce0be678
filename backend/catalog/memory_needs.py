"""The memory that a model needs with its pool before it was ever loaded, estimated from its files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

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
