"""Short lists in the sentences of checks and problems."""

from __future__ import annotations

from collections.abc import Sequence

_LISTED = 5
"""The most items listed in a sentence."""


def some(items: Sequence[int] | Sequence[str]) -> str:
    """Return the first few items, and how many more there are."""
    shown = ", ".join(map(str, items[:_LISTED]))
    return shown if len(items) <= _LISTED else f"{shown} and {len(items) - _LISTED} more"
