"""What has to be the same on every machine of a service."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from tinkergym import __version__


def versions() -> dict[str, str]:
    """Return the versions of Python, torch and tinkergym on this machine."""
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "missing"
    return {"Python": platform.python_version(), "torch": torch, "tinkergym": __version__}
