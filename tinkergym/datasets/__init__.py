"""Datasets of conversations and preferences, rendered to token ids in the client."""

import importlib
from typing import Any

_HOMES = {"describe": "tinkergym.remote.described_data", "DataReport": "tinkergym.datasets.data_report"}
"""What scripts use, imported on first use; a model by name is asked of its service."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tinkergym.datasets' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
