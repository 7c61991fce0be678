"""A folder that only this user can enter, so that other users cannot reach anything below it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from backend.errors import StartError


def make_private(folder: Path) -> Path:
    """Create the folder with mode 0700, or check that an existing one is private.

    Under a shared parent, such as the system's temporary folder, another user may have created it first.

    Raises:
        StartError: It is a link, or belongs to or can be entered by other users.
        OSError: It cannot be created.
    """
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            fault = "is not a folder of this user"
        elif found.st_mode & 0o077:
            fault = f"can be entered by other users (mode {stat.S_IMODE(found.st_mode):o})"
        else:
            return folder
        raise StartError(
            f"{folder} {fault}", hint="remove it, or choose another data_dir", field="data_dir"
        ) from None
    return folder
