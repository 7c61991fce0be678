"""Folders that other users cannot enter, or at least cannot change."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from backend.errors import ConfigError


@contextmanager
def private_files() -> Iterator[None]:
    """Let this process and its children create files and folders for this user only, until the block ends."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def make_private(folder: Path) -> Path:
    """Create the folder with mode 0700, or check that an existing one is private.

    Under a shared parent, such as the system's temporary folder, another user may have created it first.

    Raises:
        ConfigError: It is a link, or belongs to or can be entered by other users.
        OSError: It cannot be created.
    """
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            fault, code = "is not a folder of this user", "not_own"
        elif found.st_mode & 0o077:
            fault, code = f"can be entered by other users (mode {stat.S_IMODE(found.st_mode):o})", "open"
        else:
            return folder
        raise ConfigError(
            f"{folder} {fault}", hint="remove it, or choose another data_dir", field="data_dir", code=code
        ) from None
    return folder


def close_to_others(folder: Path, own: Collection[str]) -> None:
    """Remove the rights of other users to a folder of ours.

    Args:
        folder: It exists.
        own: Names of files that only we create; a folder with files but none of these belongs to something
            else.

    Raises:
        ConfigError: It belongs to something else; the hint has the command that closes it.
        OSError: It cannot be closed.
    """
    mode = stat.S_IMODE(folder.stat().st_mode)
    if not mode & 0o077:
        return
    names = {path.name for path in folder.iterdir()}
    if names and not names & set(own):
        raise ConfigError(
            f"the data folder {folder} contains other files, and other users can enter it (mode {mode:o})",
            hint=f"choose another data_dir, or run `chmod go-rwx {shlex.quote(str(folder))}`",
            field="data_dir",
        )
    folder.chmod(mode & 0o700)


def refuse_changes_by_others(folder: Path) -> None:
    """Check that only this user and root can change a folder, or replace it in one of its parents.

    A shared parent with the sticky bit, such as the system's temporary folder, is safe: in it, users can only
    rename what they own.

    Raises:
        ConfigError: Another user can; the hint has the command that fixes it.
        OSError: It cannot be read.
    """
    folder, trusted = folder.resolve(), {os.getuid(), 0, *_unmapped_owner()}
    for place in (folder, *folder.parents):
        found = place.stat()
        if found.st_uid not in trusted:
            raise ConfigError(
                f"the data folder {folder} is not safe: {place} belongs to another user (id {found.st_uid})",
                hint=f"run `chown {os.getuid()} {shlex.quote(str(place))}`, or choose another data_dir",
                field="data_dir",
            )
        shared = place != folder and found.st_mode & stat.S_ISVTX
        if found.st_mode & _others(found, its_parent=place != folder) and not shared:
            raise ConfigError(
                f"the data folder {folder} is not safe: other users can write to {place} "
                f"(mode {stat.S_IMODE(found.st_mode):o})",
                hint=f"run `chmod go-w {shlex.quote(str(place))}`, or choose another data_dir",
                field="data_dir",
            )


def _others(found: os.stat_result, *, its_parent: bool) -> int:
    """Return the mode bits that let other users write.

    Many systems give each user a group of their own, and create folders that this group can write to.
    """
    own_group = its_parent and found.st_gid == os.getgid()
    return stat.S_IWOTH if own_group else stat.S_IWOTH | stat.S_IWGRP


def _unmapped_owner() -> set[int]:
    """Return the id that a container without the machine's users shows for them, its root among them."""
    try:
        everyone = Path("/proc/self/uid_map").read_text("ascii").split() == ["0", "0", str(2**32 - 1)]
        return set() if everyone else {int(Path("/proc/sys/kernel/overflowuid").read_text("ascii"))}
    except (OSError, ValueError):  # Not Linux.
        return set()
