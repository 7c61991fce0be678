"""Files that users name to be written: by one process at a time, with an error that names the place."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tinkergym.errors import ConflictError, InvalidRequestError

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


@contextmanager
def writing_to(path: Path, field: str = "path") -> Iterator[None]:
    """Turn an OSError of the block into an error about `path`.

    Args:
        path: The place that the block writes to.
        field: The argument that names it.

    Raises:
        InvalidRequestError: The block raised an OSError: no permission, no folder, no space.
    """
    try:
        yield
    except OSError as error:
        raise InvalidRequestError(
            f"{path} cannot be written: {error.strerror or error}",
            hint="choose a folder that you may write to, on a disk with free space",
            field=field,
        ) from error
