"""Packages of trackers, which are not installed with the SDK: imported when a tracker is created."""

from __future__ import annotations

import importlib
from typing import Any

from tinkergym.errors import MissingExtraError


def package(name: str) -> Any:
    """Import a tracker's package, or a module of it.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        distribution = name.partition(".")[0]
        raise MissingExtraError(
            f"report_to={distribution!r} needs the package {distribution}: {error}",
            hint=f"pip install {distribution}",
        ) from error
