"""One process writes to a file at a time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import IO

from tinkergym.errors import ConflictError

if sys.platform != "win32":
    import fcntl


def lock_file(file: IO[bytes], path: Path) -> None:
    """Lock an open file until it is closed.

    Raises:
        ConflictError: Another process has it.
    """
    if sys.platform == "win32":  # There, opening a file for writing twice fails anyway.
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ConflictError(
            f"another process is writing to {path}",
            hint="wait for it, or choose another file",
            code="in_use",
        ) from error
