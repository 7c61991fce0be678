"""Layers of a model by name or pattern, as users write them for an adapter. Does not import torch."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from tinkergym.errors import InvalidRequestError


def names(pattern: str, path: str) -> bool:
    """Whether a pattern matches a layer: by its last name, its path, or the end of its path from a dot on."""
    return (
        fnmatchcase(path.rpartition(".")[2], pattern)
        or fnmatchcase(path, pattern)
        or fnmatchcase(path, f"*.{pattern}")
    )


def no_such_layer(pattern: str, paths: Iterable[str]) -> InvalidRequestError:
    """Return the error for a pattern without a match, with the existing names."""
    known = ", ".join(sorted({path.rpartition(".")[2] for path in paths}))
    return InvalidRequestError(
        f"{pattern!r} does not match a layer that an adapter can change; the model has {known}",
        hint="write a name, or the end of a path with * for anything, such as layers.0.*; or leave it out "
        "to adapt all",
        field="adapter.target_modules",
    )
