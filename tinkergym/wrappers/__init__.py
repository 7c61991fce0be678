"""Wrappers around environments, one per file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinkergym.wrappers.train_remotely import TrainRemotely

__all__ = ["TrainRemotely"]


def __getattr__(name: str) -> Any:
    # On first use: `import tinkergym` must not load httpx.
    if name == "TrainRemotely":
        from tinkergym.wrappers.train_remotely import TrainRemotely

        return TrainRemotely
    raise AttributeError(f"module 'tinkergym.wrappers' has no attribute {name!r}")
