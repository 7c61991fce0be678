"""Merge settings with sections from several layers: a file, a short run's overrides, the command line."""

from __future__ import annotations

from typing import Any


def merged(*layers: dict[str, Any]) -> dict[str, Any]:
    """Return nested settings in which later layers win."""
    result: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            below = result.get(key)
            result[key] = (
                merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
            )
    return result
