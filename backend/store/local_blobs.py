"""Blobs in a local folder."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from backend.errors import BlobsUnavailableError
from backend.store.blobs import MANIFEST, BlobInfo, BlobMissingError, key_parts, listed_files
from tinkergym.errors import StorageFullError, TinkerGymError

_DRAFT = ".draft-"
_COPY_BYTES = 2**20
_AWAY = frozenset(
    getattr(errno, name)
    for name in (
        *("EIO", "ESTALE", "ENODEV", "ENXIO", "EROFS", "EACCES", "EPERM"),
        *("ENOTCONN", "ETIMEDOUT", "EHOSTDOWN", "EHOSTUNREACH"),
    )
)
"""Of a disk that fails, a network file system that is gone, or a folder that may not be used."""


class LocalBlobs:
    """Blobs in a local folder. Unfinished files of killed writers are never listed."""

    def __init__(self, root: Path) -> None:
        """Use the folder; it is created on the first write."""
        self._root = root

    def below(self, key: str) -> LocalBlobs:
        """See `Blobs`."""
        return LocalBlobs(self._path(key))

    def where(self, key: str) -> str:
        """See `Blobs`."""
        return str(self._path(key))

    def put(self, key: str, content: bytes | bytearray) -> None:
        """See `Blobs`."""
        with self._writing(key) as file:
            file.write(content)

    def put_file(self, key: str, path: Path) -> None:
        """See `Blobs`."""
        with path.open("rb") as source, self._writing(key) as file:
            shutil.copyfileobj(source, file, _COPY_BYTES)

    @contextmanager
    def reading(self, key: str) -> Iterator[Path]:
        """See `Blobs`."""
        path = self._path(key)
        with disk_answers(path):
            if not path.is_file():
                raise BlobMissingError(key)
        yield path

    def get(self, key: str) -> bytes:
        """See `Blobs`."""
        try:
            with disk_answers(self._path(key)):
                return self._path(key).read_bytes()
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise BlobMissingError(key) from None

    def has(self, key: str) -> bool:
        """See `Blobs`."""
        with disk_answers(self._path(key)), suppress(FileNotFoundError, NotADirectoryError):
            self._path(key).stat()
            return True
        return False

    def files(self, key: str = "") -> list[BlobInfo]:
        """See `Blobs`."""
        top = self._path(key)
        with disk_answers(top):
            return sorted(_files_below(top), key=lambda info: info.key)

    def folders(self, key: str = "") -> list[str]:
        """See `Blobs`."""
        path = self._path(key)
        with disk_answers(path), suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
        return []

    def delete(self, key: str) -> int:
        """See `Blobs`."""
        path = self._path(key)
        with disk_answers(path):
            if path.is_dir():
                size = sum(info.bytes for info in self.files(key))
                shutil.rmtree(path)
                return size
            with suppress(FileNotFoundError, NotADirectoryError):
                size = path.stat().st_size
                path.unlink()
                return size
        return 0

    @contextmanager
    def filling(self, key: str) -> Iterator[Path]:
        """See `Blobs`."""
        path = self._path(key)
        with disk_answers(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            shutil.rmtree(path, ignore_errors=True)
            try:
                yield path
                _flush(path.parent)
            except BaseException:
                shutil.rmtree(path, ignore_errors=True)
                raise

    def local(self, key: str, names: Collection[str] | None = None) -> Path:
        """See `Blobs`."""
        folder = self._path(key)
        with disk_answers(folder):
            if names is None:
                with missing_named(folder / MANIFEST):
                    names = listed_files((folder / MANIFEST).read_bytes(), str(folder))
            for name in names:
                with missing_named(folder / name):
                    (folder / name).stat()
        return folder

    def remove_drafts(self, *, before: float) -> None:
        """See `Blobs`."""
        for draft in self._root.rglob(f"{_DRAFT}*"):
            with suppress(FileNotFoundError):
                if draft.stat().st_mtime < before:
                    draft.unlink()

    @contextmanager
    def _writing(self, key: str) -> Iterator[BinaryIO]:
        path = self._path(key)
        # In the same folder: a rename replaces a file at once only within one file system.
        draft = path.with_name(f"{_DRAFT}{os.getpid()}-{os.urandom(4).hex()}")
        with disk_answers(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                with draft.open("wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                draft.replace(path)
            finally:
                draft.unlink(missing_ok=True)
            # The file's name, too, survives a power loss only once its folder is synced.
            _flush(path.parent)

    def _path(self, key: str) -> Path:
        return self._root.joinpath(*key_parts(key))


def _files_below(top: Path) -> Iterator[BlobInfo]:
    for folder, _, names in os.walk(top, onerror=_unless_gone):
        for name in names:
            # Drafts, of writers that have not finished.
            if name.startswith("."):
                continue
            path = Path(folder, name)
            with suppress(FileNotFoundError):  # another's, moved or removed meanwhile
                status = path.stat()
                yield BlobInfo(
                    key=path.relative_to(top).as_posix(), bytes=status.st_size, written_at=status.st_mtime
                )


def _unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


@contextmanager
def missing_named(file: Path) -> Iterator[None]:
    """Turn the error of a file that is not there into ours."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise BlobsUnavailableError(
            f"blob store unavailable: {file} is missing, although the database names it",
            hint="mount the disk, or restore the file from a backup; the job waits until it is there",
        ) from error


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_answers(path: Path) -> Iterator[None]:
    """Turn the errors of a disk that is away, full, or may not be used, into ours."""
    try:
        yield
    except TinkerGymError:
        raise
    except Exception as error:
        number = _number(error)
        if number in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFullError(
                f"no space left on the disk for {path}",
                hint="free space, for example with `tinkergym jobs delete` of ended jobs, then try again",
            ) from error
        if number in _AWAY:
            raise BlobsUnavailableError(
                f"blob store unavailable: {path}: {os.strerror(number)}",
                hint="mount the disk, or correct the folder's permissions; jobs wait and go on by themselves",
            ) from error
        raise


def _number(error: Exception) -> int:
    """Return the operating system's number of an error; 0 if it has none."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    # The errors of safetensors have it only in their text.
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else 0
