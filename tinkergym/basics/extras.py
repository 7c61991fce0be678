"""Imports that wait: packages that are not installed with the SDK, and a package's public names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
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


def late_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that imports its names when they are first asked for.

    Args:
        package: Its name.
        homes: By module, its public names. A module of the package is written without the package's name.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def find(name: str) -> Any:
        home = home_of.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(home if "." in home else f"{package}.{home}")
        value = getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return find
