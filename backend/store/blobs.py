"""The service's files by key: uploaded data, checkpoints, and what jobs keep next to them.

A key is a relative path with slashes. Callers use keys, never disk paths, so an object store can replace the
folder: it would download what `local` asks for and upload what `filling` and `put` receive.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol, Self

from tinkergym.errors import StorageFullError

_DRAFT = ".draft-"


class BlobMissingError(LookupError):
    """No blob has this key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobInfo:
    """An entry of a listing."""

    key: str
    """Relative to the listed folder."""
    bytes: int
    written_at: float
    """Unix seconds, of the last `put` or `touch`."""


class Blobs(Protocol):
    """Blobs, and folders of blobs, by key."""

    def below(self, key: str) -> Self:
        """Return the blobs whose keys begin with `key/`; the view's keys are relative to it."""
        ...

    def put(self, key: str, content: bytes | bytearray) -> None:
        """Write or replace a blob. It is durable when this returns, and invisible until then.

        Raises:
            StorageFullError: The disk is full.
        """
        ...

    def get(self, key: str) -> bytes:
        """Return a blob.

        Raises:
            BlobMissingError: No blob has this key.
        """
        ...

    def has(self, key: str) -> bool:
        """Return whether a blob or folder has this key."""
        ...

    def touch(self, key: str) -> bool:
        """Set the time of a blob to now; return False if no blob has this key."""
        ...

    def files(self, key: str = "") -> list[BlobInfo]:
        """Return all blobs in a folder and its subfolders, sorted by key; empty if there is no folder."""
        ...

    def folders(self, key: str = "") -> list[str]:
        """Return the names of a folder's subfolders, sorted."""
        ...

    def delete(self, key: str) -> None:
        """Remove a blob or folder if it exists."""
        ...

    def move(self, key: str, to: str) -> bool:
        """Rename a blob or folder atomically; return False if it does not exist."""
        ...

    def put_folder(self, key: str, source: Path) -> None:
        """Copy a local folder atomically.

        Raises:
            StorageFullError: The disk is full.
        """
        ...

    def local(self, key: str) -> Path:
        """Return a local path from which to read a blob or folder; nothing may be written there."""
        ...

    @contextmanager
    def filling(self, key: str) -> Iterator[Path]:
        """Yield a path where the caller creates a folder; after the block it becomes `key`, atomically."""
        ...

    def remove_drafts(self) -> None:
        """Remove unfinished files of killed writers; must not run while anyone writes."""
        ...


class LocalBlobs:
    """Blobs in a local folder. Unfinished files of killed writers are never listed."""

    def __init__(self, root: Path) -> None:
        """Use the folder; it is created on the first write."""
        self._root = root

    def below(self, key: str) -> LocalBlobs:
        """See `Blobs`."""
        return LocalBlobs(self._path(key))

    def put(self, key: str, content: bytes | bytearray) -> None:
        """See `Blobs`."""
        path = self._path(key)
        draft = path.with_name(f"{_DRAFT}{os.getpid()}-{os.urandom(4).hex()}")
        with _full_disk_named(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                with draft.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
                draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)
            _flush(path.parent)

    def get(self, key: str) -> bytes:
        """See `Blobs`."""
        try:
            return self._path(key).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise BlobMissingError(key) from None

    def has(self, key: str) -> bool:
        """See `Blobs`."""
        return self._path(key).exists()

    def touch(self, key: str) -> bool:
        """See `Blobs`."""
        try:
            os.utime(self._path(key))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def files(self, key: str = "") -> list[BlobInfo]:
        """See `Blobs`."""
        top = self._path(key)
        found = []
        for folder, _, names in os.walk(top):
            for name in names:
                if name.startswith("."):
                    continue
                path = Path(folder, name)
                with suppress(FileNotFoundError):  # another's, moved or removed meanwhile
                    status = path.stat()
                    found.append(
                        BlobInfo(
                            key=path.relative_to(top).as_posix(),
                            bytes=status.st_size,
                            written_at=status.st_mtime,
                        )
                    )
        return sorted(found, key=lambda info: info.key)

    def folders(self, key: str = "") -> list[str]:
        """See `Blobs`."""
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self._path(key)) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
        return []

    def delete(self, key: str) -> None:
        """See `Blobs`."""
        path = self._path(key)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            with suppress(FileNotFoundError, NotADirectoryError):
                path.unlink()

    def move(self, key: str, to: str) -> bool:
        """See `Blobs`."""
        target = self._path(to)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self._path(key).rename(target)
        except FileNotFoundError:
            return False
        return True

    def put_folder(self, key: str, source: Path) -> None:
        """See `Blobs`."""
        target = self._path(key)
        draft = target.with_name(f"{_DRAFT}{os.getpid()}-{target.name}")
        shutil.rmtree(draft, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _full_disk_named(target):
            shutil.copytree(source, draft)
            draft.rename(target)

    def local(self, key: str) -> Path:
        """See `Blobs`."""
        return self._path(key)

    @contextmanager
    def filling(self, key: str) -> Iterator[Path]:
        """See `Blobs`."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        yield path

    def remove_drafts(self) -> None:
        """See `Blobs`."""
        for draft in self._root.rglob(f"{_DRAFT}*"):
            if draft.is_dir():
                shutil.rmtree(draft)
            else:
                draft.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        parts = PurePosixPath(key).parts
        assert not key.startswith("/") and ".." not in parts, f"{key!r} is not a valid key"
        return self._root.joinpath(*parts)


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _full_disk_named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFullError(
                f"no space left on the disk for {path}", hint="free space, then try again"
            ) from error
        raise


def checkpoints_of(files: Blobs, agent: str) -> Blobs:
    """Return the checkpoints of a job's policy, a folder each, among the files of the job."""
    return files.below(f"checkpoints/{agent}")


def folder_of(step: int) -> str:
    """Return the key of a step's checkpoint."""
    return f"step-{step:06d}"


def checkpoint_path(job_files: Blobs, job_id: str, agent: str, step: int) -> Path:
    """Return the local path of a checkpoint, among the files of all jobs."""
    return checkpoints_of(job_files.below(job_id), agent).local(folder_of(step))
