"""How much memory a model takes with its pool, before one was ever loaded: known from its files."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_POOL_BYTES = 10**9
"""What a pool and its environment workers take besides the weights."""


def expected_bytes(model: str, models: Mapping[str, str]) -> int:
    """Return what the pool of a model will take; the weights of one on the hub are not known before.

    Args:
        model: A name, a folder or a hub id.
        models: Where those with a name are.
    """
    weights = 0
    # A folder that was removed or changed since is for the pool to name; all other models are waiting.
    with suppress(OSError, RuntimeError, ValueError):
        folder = Path(models.get(model, model)).expanduser()
        weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return _POOL_BYTES + weights
