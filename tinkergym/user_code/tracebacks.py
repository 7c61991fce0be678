"""Tracebacks for readers on other machines: each file by its place in its package."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath

_FILE = re.compile(r'^([\s|+-]*File ")(/[^"\n]+|[A-Za-z]:[^"\n]+)(")', re.MULTILINE)
"""The absolute path in a line of a traceback or a stack, also within a group of exceptions."""


def with_relative_paths(text: str, folders: Sequence[str] | None = None) -> str:
    """Return a text whose tracebacks name files relative to the folder that Python imports them from.

    Args:
        text: Any text.
        folders: The folders of imports; None is `sys.path`.
    """
    known = [str(Path(folder).absolute()) for folder in (sys.path if folders is None else folders)]
    return _FILE.sub(lambda found: f"{found[1]}{_relative(Path(found[2]), known)}{found[3]}", text)


def _relative(file: Path, folders: Sequence[str]) -> str:
    inside = [PurePath(folder) for folder in folders if file.is_relative_to(folder)]
    if inside:
        return file.relative_to(max(inside, key=lambda folder: len(folder.parts))).as_posix()
    # Installed for development: its folder is not among those of imports.
    top = file.parent
    while (top / "__init__.py").exists() and top != top.parent:
        top = top.parent
    return file.relative_to(top).as_posix()
