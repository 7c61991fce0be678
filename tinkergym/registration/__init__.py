"""Environments and games by id, and the installed packs that provide them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinkergym.basics.extras import late_names

if TYPE_CHECKING:
    from tinkergym.registration.environments import registered
    from tinkergym.registration.packs import find_packs

__all__ = ["find_packs", "registered"]

__getattr__ = late_names(
    __name__,
    {"packs": "find_packs", "environments": "registered"},
)
