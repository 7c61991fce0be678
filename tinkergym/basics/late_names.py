"""A package's public names, imported when they are first asked for: who needs one waits for no other."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def late_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package.

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
