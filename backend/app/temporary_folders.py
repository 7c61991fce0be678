"""The service's folders in the system's temporary one: removed with their owner, or after it was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from backend.errors import ConfigError
from backend.private_folder import make_private
from tinkergym.tools.sandbox.python_run import FOLDER_PREFIX

_LOCK = "owner.lock"
_LEAST_AGE_SECONDS = 3600.0
"""Younger ones may be in the middle of being created."""


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Create a private folder, locked until the block ends and then removed.

    Raises:
        ConfigError: It cannot be created, or other users can reach it.
    """
    try:
        make_private(folder)
        lock = (folder / _LOCK).open("w")
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder} cannot be written: {error.strerror or error}",
            hint="choose another data_dir, or set TINKERGYM_HOME",
            field="data_dir",
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(place: Path | None = None, *, now: float | None = None) -> None:
    """Remove this user's folders whose owners are dead, in the system's temporary folder or `place`."""
    before = (time.time() if now is None else now) - _LEAST_AGE_SECONDS
    place = place or Path(tempfile.gettempdir())
    for folder in [*place.glob(f"tinkergym-{os.getuid()}-*"), *place.glob(f"{FOLDER_PREFIX}*")]:
        with suppress(OSError):
            found = folder.lstat()
            if found.st_uid != os.getuid() or found.st_mtime > before:
                continue
            owner = folder.name.removeprefix(FOLDER_PREFIX).partition("-")[0]
            if owner.isdigit():
                if not psutil.pid_exists(int(owner)):
                    shutil.rmtree(folder, ignore_errors=True)
            elif (folder / _LOCK).exists():
                with (folder / _LOCK).open("r+") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
            else:
                folder.rmdir()  # Only if it is empty.
