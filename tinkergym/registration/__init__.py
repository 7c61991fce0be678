"""Environments and games by id, and the installed packs that provide them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinkergym.registration.environments import registered
    from tinkergym.registration.packs import find_packs

__all__ = ["find_packs", "registered"]

_HOMES = {"find_packs": "packs", "registered": "environments"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tinkergym.registration' has no attribute {name!r}")
    return getattr(importlib.import_module(f"tinkergym.registration.{_HOMES[name]}"), name)
