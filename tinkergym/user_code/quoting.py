"""Text of objects and tracebacks from users' code, safe to put into a message for another machine."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath

_MOST_CHARACTERS = 200


def quoted(value: object, most: int = _MOST_CHARACTERS) -> str:
    """Return the beginning of `str(value)`, or the type's name if that fails."""
    try:
        return str(value)[:most]
    # Foreign code, called while reporting another error.
    except Exception as error:
        return f"<{type(value).__name__}, whose str() failed: {type(error).__name__}>"


def type_in_words(value: object) -> str:
    """Return the type of a value from users' code. None is usually a forgotten `return`."""
    return "None (did you forget `return`?)" if value is None else type(value).__name__


def printable(text: str) -> str:
    """Return a text with control characters escaped, except for new lines and tabs.

    A terminal would interpret them: move the cursor, hide text, or send input.
    """
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode()
        for char in text
    )


def raised(error: BaseException) -> str:
    """Return the type and the text of an error from users' code, on one or more lines."""
    return printable(f"{type(error).__name__}: {quoted(error, most=2000)}")


_FILE = re.compile(r'^([ \t|+-]*File ")(/[^"\n]+|[A-Za-z]:[^"\n]+)(")', re.MULTILINE)
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
