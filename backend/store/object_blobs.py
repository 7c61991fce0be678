"""Blobs in an object store by URL, such as `s3://bucket/prefix`. The only door to fsspec."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import fsspec

from backend.errors import BlobsUnavailableError, ConfigError
from backend.store.blobs import MANIFEST, BlobInfo, BlobMissingError, key_parts
from backend.store.folder_cache import FolderCache
from tinkergym.errors import MissingExtraError, StorageFullError, TinkerGymError

_PART_BYTES = 16 * 2**20
"""Of a streamed upload or download; s3fs holds a few of them in memory."""

_OF_UNKNOWN_SIZE = 30.0
"""So many times longer may it take to read a blob whose size would cost another call."""
_OF_MANY = 3.0
"""So many times longer may it take to list or delete a folder, or to begin with a file."""

# Limits are short and tries few: a job that waits for the store says so to its tenant, and tries again by
# itself.
_READ_SECONDS, _TRIES = 15, 2
"""Of s3fs, around botocore's own attempts."""
_FILE_READ_SECONDS, _FILE_TRIES = 30, 5
"""For files: all parts of a large one must come through in one call, and a slow link breaks now and then. A
download goes on where it broke off, but counts the breaks of the whole file."""
_FULL = (
    "QuotaExceeded",
    "StorageFull",
    "InsufficientStorage",
    "XAmzStorageFull",
    "XMinioAdminBucketQuotaExceeded",
    "507",
)
"""Codes with which S3 servers say that a bucket or its disk is full."""


class ObjectBlobs:
    """Blobs below a URL. Folders are read through a cache of this node."""

    def __init__(self, url: str, cache: FolderCache, *, answer_seconds: float = 10.0) -> None:
        """Use the store at `url`; nothing is sent yet.

        Args:
            url: Where it is.
            cache: Where folders are read from.
            answer_seconds: How long a small call may take, three times as long a file's, and a second for
                each MiB: without this, a server that accepts connections and says nothing is waited for
                forever.

        Raises:
            MissingExtraError: What speaks the URL's protocol is not installed.
            ConfigError: Its protocol is not known.
        """
        self._url, self._cache, self._answer_seconds = url.rstrip("/"), cache, answer_seconds
        self._fs, self._file_fs = _file_system(self._url), _file_system(self._url, for_files=True)
        self._root = str(self._fs._strip_protocol(self._url)).rstrip("/")

    def __reduce__(self) -> tuple[type[ObjectBlobs], tuple[str, FolderCache]]:
        # Connections stay behind: they belong to a process.
        return ObjectBlobs, (self._url, self._cache)

    def _within(self, size: int = 0, *, times: float = 1.0) -> dict[str, float]:
        """Return the time limit of a call that moves so many bytes, for file systems that have one."""
        asynchronous = getattr(self._fs, "async_impl", False)
        return {"timeout": times * self._answer_seconds + size / 2**20} if asynchronous else {}

    def below(self, key: str) -> ObjectBlobs:
        """See `Blobs`."""
        return ObjectBlobs(self.where(key), self._cache, answer_seconds=self._answer_seconds)

    def where(self, key: str) -> str:
        """See `Blobs`."""
        return "/".join((self._url, *key_parts(key)))

    def put(self, key: str, content: bytes | bytearray) -> None:
        """See `Blobs`."""
        with self._answers(key):
            self._fs.pipe_file(self._path(key), bytes(content), **self._within(len(content)))

    def get(self, key: str) -> bytes:
        """See `Blobs`."""
        with self._answers(key):
            content: bytes = self._fs.cat_file(self._path(key), **self._within(times=_OF_UNKNOWN_SIZE))
            return content

    def put_file(self, key: str, path: Path) -> None:
        """See `Blobs`."""
        # One part at a time: with s3fs's defaults, 64 MiB take 129 MiB of memory.
        with self._answers(key):
            limit = self._within(path.stat().st_size, times=_OF_MANY)
            copied = {"chunksize": _PART_BYTES, "max_concurrency": 1}
            self._file_fs.put_file(str(path), self._path(key), **copied, **limit)

    @contextmanager
    def reading(self, key: str) -> Iterator[Path]:
        """See `Blobs`."""
        with self._cache.draft() as path:
            self._download(key, path)
            yield path

    def has(self, key: str) -> bool:
        """See `Blobs`."""
        try:
            with self._answers(key):
                self._fs.info(self._path(key), **self._within())
        except BlobMissingError:
            return False
        return True

    def files(self, key: str = "") -> list[BlobInfo]:
        """See `Blobs`."""
        top = self._path(key)
        with self._answers(key):
            found = self._fs.find(top, detail=True, **self._within(times=_OF_MANY))
        return [
            BlobInfo(key=path.removeprefix(top).lstrip("/"), bytes=info["size"], written_at=_written_at(info))
            for path, info in sorted(found.items())
            if path != top
        ]

    def folders(self, key: str = "") -> list[str]:
        """See `Blobs`."""
        try:
            with self._answers(key):
                found = self._fs.ls(self._path(key), detail=True, **self._within(times=_OF_MANY))
        except BlobMissingError:
            return []
        return sorted(entry["name"].rpartition("/")[2] for entry in found if entry["type"] == "directory")

    def delete(self, key: str) -> int:
        """See `Blobs`."""
        top = self._path(key)
        with suppress(BlobMissingError), self._answers(key):
            limit = self._within(times=_OF_MANY)
            found = self._fs.find(top, detail=True, withdirs=True, **limit)
            if found:  # By name, because with `recursive` the file system would list once more.
                self._fs.rm(sorted({top, *found}), **limit)
            return sum(info["size"] for info in found.values() if info["type"] == "file")
        return 0

    @contextmanager
    def filling(self, key: str) -> Iterator[Path]:
        """See `Blobs`."""
        with self._cache.draft() as folder:
            yield folder
            # A folder whose upload was interrupted has no manifest, and is not named by a row.
            last = folder / MANIFEST
            for file in (*sorted(set(folder.iterdir()) - {last}), last):
                self.put_file(f"{key}/{file.name}", file)
            self._cache.adopt(folder)

    def local(self, key: str, names: Collection[str] | None = None) -> Path:
        """See `Blobs`."""
        try:
            manifest = self.get(f"{key}/{MANIFEST}")
            return self._cache.folder(
                manifest,
                names,
                lambda name, path: self._download(f"{key}/{name}", path),
                where=self.where(key),
            )
        except BlobMissingError as missing:
            where = self.where(str(missing))
            raise BlobsUnavailableError(
                f"blob store unavailable: {where} is missing, although the database names it",
                hint="restore it from a backup; the job waits until it is there",
            ) from None

    def remove_drafts(self, *, before: float) -> None:
        """See `Blobs`; of uploads, the bucket's own rule does it."""
        self._cache.remove_drafts(before=before)

    def _download(self, key: str, path: Path) -> None:
        try:
            with self._answers(key):
                size = self._fs.info(self._path(key), **self._within())["size"] or 0
                limit = self._within(size, times=_OF_MANY)
                copied = {"chunksize": _PART_BYTES, "max_concurrency": 1}
                self._file_fs.get_file(self._path(key), str(path), **copied, **limit)
        except StorageFullError as error:  # Nothing is written into the store.
            raise StorageFullError(
                f"no space left on this node's disk for {path.parent}", hint="free space, then try again"
            ) from error

    def _path(self, key: str) -> str:
        return "/".join((self._root, *key_parts(key)))

    @contextmanager
    def _answers(self, key: str) -> Iterator[None]:
        """Turn the errors of a file system into ours."""
        try:
            yield
        except (TinkerGymError, AssertionError):
            raise
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            if "bucket does not exist" in str(error):
                raise self._unavailable(error) from error
            raise BlobMissingError(key) from None
        except Exception as error:  # botocore's and aiohttp's errors have no common base class
            if _says_full(error):
                raise StorageFullError(
                    f"{self._url} is full: {error}", hint="free space there, then try again"
                ) from error
            raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> BlobsUnavailableError:
        name = type(error).__name__  # fsspec's, botocore's or Python's
        what = "does not answer" if "Timeout" in name else f"fails with {name}: {error}"
        return BlobsUnavailableError(
            f"blob store unavailable: {self._url} {what}",
            hint="check the network, the bucket and the credentials; jobs wait and go on by themselves",
        )


def _file_system(url: str, *, for_files: bool = False) -> Any:
    protocol = url.partition("://")[0]
    try:
        return _opened(protocol, os.getpid(), for_files)
    except ImportError as error:
        raise MissingExtraError(
            f"blobs={url} needs a package that is not installed: {error}",
            hint="pip install 'tinkergym[s3]', or leave out the setting to use data_dir",
            field="blobs",
        ) from None
    except ValueError as error:
        raise ConfigError(
            f"blobs={url} is not a URL of a known kind: {error}", hint="use s3://bucket/prefix", field="blobs"
        ) from None


@functools.lru_cache
def _opened(protocol: str, _process_id: int, for_files: bool) -> Any:
    # By process as well, since a forked one must not use its parent's connections.
    # fsspec keeps one per thread, each with connections of its own.
    if protocol != "s3":
        return fsspec.filesystem(protocol, skip_instance_cache=True)
    seconds, tries = (_FILE_READ_SECONDS, _FILE_TRIES) if for_files else (_READ_SECONDS, _TRIES)
    limits = {"connect_timeout": 5, "read_timeout": seconds, "retries": {"total_max_attempts": 2}}
    # No listing is cached, as other processes write as well.
    opened = fsspec.filesystem(
        protocol, skip_instance_cache=True, use_listings_cache=False, config_kwargs=limits
    )
    opened.retries = tries
    return opened


def _says_full(error: BaseException | None) -> bool:
    """Return whether an error has a code for a full store, or its cause has; the text may contain any key."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        response = getattr(error, "response", None)  # botocore's
        if isinstance(response, dict):
            codes = (
                response.get("Error", {}).get("Code"),
                response.get("ResponseMetadata", {}).get("HTTPStatusCode"),
            )
            if any(str(code) in _FULL for code in codes):
                return True
        error = error.__cause__
    return False


def _written_at(info: dict[str, Any]) -> float:
    time = info.get("LastModified") or info.get("mtime") or info.get("created")
    return time.timestamp() if isinstance(time, datetime) else float(time or 0.0)
