"""Files of the service by key: uploaded data, checkpoints, what jobs keep next to them.

A key is a relative path with slashes. Callers name keys, never a place on a disk, so an object store can
replace the folder: it would download what `local` asks for and upload what `filling` and `put` were given.
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
    """There is no blob with this key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobInfo:
    """What a listing says of a blob."""

    key: str
    """Relative to where the listing was asked for."""
    bytes: int
    written_at: float
    """Unix seconds."""


class Blobs(Protocol):
    """Blobs, and folders of blobs, by key."""

    def below(self, key: str) -> Self:
        """Return the blobs whose keys begin with `key/`, under what follows."""
        ...

    def put(self, key: str, content: bytes | bytearray) -> None:
        """Write a blob, or replace it. When this returns it is durable; until then it is not there.

        Raises:
            StorageFullError: There is no room for it.
        """
        ...

    def get(self, key: str) -> bytes:
        """Return a blob.

        Raises:
            BlobMissingError: There is none.
        """
        ...

    def has(self, key: str) -> bool:
        """Return whether there is a blob or a folder with this key."""
        ...

    def files(self, key: str = "") -> list[BlobInfo]:
        """Return every blob of a folder and of its folders, sorted by key; none if there is no folder."""
        ...

    def folders(self, key: str = "") -> list[str]:
        """Return the names of the folders in a folder, sorted."""
        ...

    def delete(self, key: str) -> None:
        """Remove a blob or a folder, if it is there."""
        ...

    def move(self, key: str, to: str) -> bool:
        """Give a blob or a folder another key, at once and as a whole; return False if it is not there."""
        ...

    def put_folder(self, key: str, source: Path) -> None:
        """Copy a folder of this machine's disk; it appears as a whole.

        Raises:
            StorageFullError: There is no room for it.
        """
        ...

    def local(self, key: str) -> Path:
        """Return a path on this machine to read a blob or a folder from; nothing may be written there."""
        ...

    @contextmanager
    def filling(self, key: str) -> Iterator[Path]:
        """Yield a path at which the caller makes a folder, as a whole; when the block ends it is `key`."""
        ...

    def remove_drafts(self) -> None:
        """Remove what killed writers left half written; nobody may be writing."""
        ...


class LocalBlobs:
    """Blobs in a folder of this machine. Drafts that a killed writer left are never listed."""

    def __init__(self, root: Path) -> None:
        """Use the folder; nothing is made until something is written."""
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
        assert not key.startswith("/") and ".." not in parts, f"{key!r} is not a key"
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
