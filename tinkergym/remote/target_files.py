"""Errors for files that cannot be written to the place that the user named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tinkergym.errors import InvalidRequestError


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into an error about `path`.

    Args:
        path: The place that the block writes to.

    Raises:
        InvalidRequestError: The block raised an OSError: no permission, no folder, no space.
    """
    try:
        yield
    except OSError as error:
        raise InvalidRequestError(
            f"{path} cannot be written: {error.strerror or error}",
            hint="choose a folder that you may write to, on a disk with free space",
            field="path",
        ) from error
