"""Packages that are not installed with the SDK: imported where they are first needed."""

from __future__ import annotations

import importlib
from typing import Any

from tinkergym.errors import MissingExtraError, TinkerGymError


def import_extra(
    module: str, needed: str, *, extra: str = "", error: type[TinkerGymError] = MissingExtraError
) -> Any:
    """Import a module of an optional package.

    Args:
        module: Its dotted name.
        needed: What needs the package, such as "images need Pillow".
        extra: The extra of tinkergym that installs it; empty if none does.
        error: What to raise if it is not installed.

    Raises:
        MissingExtraError: It is not installed, or cannot be imported.
    """
    package = module.partition(".")[0]
    try:
        importlib.import_module(package)
        return importlib.import_module(module)
    except ImportError as cause:
        what = f"'.[{extra}]' in a checkout of tinkergym" if extra else package
        raise error(f"{needed}: {cause}", hint=f"pip install {what}") from cause
