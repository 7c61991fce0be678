"""Files that the user asked for, in a place that the user named: what keeps them from being written there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tinkergym.errors import InvalidRequestError


@contextmanager
def writing_to(path: Path) -> Iterator[None]:
    """Say of a place that cannot be written what is wrong with it.

    Args:
        path: Where the block writes.

    Raises:
        InvalidRequestError: The block raised an OSError: no permission, no folder, no space.
    """
    try:
        yield
    except OSError as error:
        raise InvalidRequestError(
            f"{path} cannot be written: {error.strerror or error}",
            hint="name a folder that you may write to, on a disk with free space",
            field="path",
        ) from error
