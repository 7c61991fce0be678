"""A node's cache of folders from an object store, by the hash of their manifest.

An entry has the files that were asked for so far, each verified. Processes of one node share the cache; what
was used longest ago is removed first.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from backend.errors import BlobsUnavailableError
from backend.store.blobs import MANIFEST, ListedFile, listed_files
from backend.store.local_blobs import disk_answers
from tinkergym.errors import CheckpointCorruptError, StorageFullError

_DRAFT = ".draft-"


class FolderCache:
    """Local copies of folders that have a manifest."""

    def __init__(self, root: Path, *, most_bytes: int, rest_seconds: float = 600.0) -> None:
        """Use `root`; it is created on the first write.

        Args:
            root: A folder on this node.
            most_bytes: More than this is removed again.
            rest_seconds: Whatever was asked for this recently stays, because it may be being read.
        """
        self._root, self._most_bytes, self._rest_seconds = root, most_bytes, rest_seconds
        self._verified: set[tuple[Path, int, int]] = set()
        """Path, size and time of files whose hash this process has checked."""

    def folder(
        self,
        manifest: bytes,
        names: Collection[str] | None,
        download: Callable[[str, Path], None],
        *,
        where: str,
    ) -> Path:
        """Return the local copy of a folder, after downloading what it lacks.

        Args:
            manifest: The folder's manifest.
            names: The files that are needed; None means all in the manifest.
            download: Writes the file of this name to this path.
            where: Names the folder in errors.

        Raises:
            CheckpointCorruptError: A downloaded file has another size or hash than the manifest says.
            BlobsUnavailableError: This node's disk is full or away; the store has everything.
        """
        files = listed_files(manifest, where)
        entry = self._root / hashlib.sha256(manifest).hexdigest()
        needed = {name: files[name] for name in (files if names is None else names) if name != MANIFEST}
        try:
            self._complete(entry, manifest, needed, download, where)
        except StorageFullError:
            with disk_answers(self._root):
                # All others may go: the store has them.
                self._make_room(keep=entry, most_bytes=0)
            try:
                self._complete(entry, manifest, needed, download, where)
            except StorageFullError as error:
                raise BlobsUnavailableError(
                    f"blob store unavailable: no space left on this node's disk for {self._root}",
                    hint="free space there; jobs wait and go on by themselves",
                ) from error
        with disk_answers(self._root):
            self._make_room(keep=entry, most_bytes=self._most_bytes)
        return entry

    def _complete(
        self,
        entry: Path,
        manifest: bytes,
        needed: Mapping[str, ListedFile],
        download: Callable[[str, Path], None],
        where: str,
    ) -> None:
        with disk_answers(entry):
            entry.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.utime(entry)  # before the downloads, which take time
            for name, listed in needed.items():
                if not self._holds(entry / name, listed):
                    self._fetch(entry / name, listed, download, where)
            if not (entry / MANIFEST).exists():
                with self.draft() as draft:
                    draft.write_bytes(manifest)
                    draft.replace(entry / MANIFEST)
            os.utime(entry, ns=(time.time_ns(), time.time_ns()))  # more exact than what the system notes

    def adopt(self, folder: Path) -> None:
        """Move a complete folder, which was just uploaded, into the cache."""
        entry = self._root / hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
        with suppress(OSError):  # it is there already
            folder.rename(entry)
        self._make_room(keep=entry, most_bytes=self._most_bytes)

    @contextmanager
    def draft(self) -> Iterator[Path]:
        """Yield an unused path in the cache; what is left there after the block is removed."""
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._root / f"{_DRAFT}{os.getpid()}-{os.urandom(4).hex()}"
        try:
            yield path
        finally:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    def remove_drafts(self, *, before: float) -> None:
        """Remove unfinished files of killed processes that are older than this time."""
        for path in self._root.glob(f"{_DRAFT}*"):
            with suppress(OSError):
                if path.stat().st_mtime < before:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _holds(self, path: Path, listed: ListedFile) -> bool:
        try:
            status = path.stat()
        except FileNotFoundError:
            return False
        known = (path, status.st_size, status.st_mtime_ns)
        if known not in self._verified:
            # The store may still have it unharmed.
            if status.st_size != listed.bytes or _sha256(path) != listed.sha256:
                return False
            self._verified.add(known)
        return True

    def _fetch(
        self, target: Path, listed: ListedFile, download: Callable[[str, Path], None], where: str
    ) -> None:
        with self.draft() as draft:
            download(target.name, draft)
            size = draft.stat().st_size
            if size != listed.bytes:
                raise _damaged(where, f"{target.name} has {size} bytes instead of {listed.bytes}")
            if _sha256(draft) != listed.sha256:
                raise _damaged(where, f"{target.name} differs from what was written (wrong SHA-256)")
            draft.replace(target)
        status = target.stat()
        self._verified.add((target, status.st_size, status.st_mtime_ns))

    def _make_room(self, *, keep: Path, most_bytes: int) -> None:
        """Remove the folders that were not used for longest, until the rest has no more bytes."""
        found = []
        for entry in self._root.iterdir() if self._root.is_dir() else ():
            with suppress(OSError):
                if not entry.name.startswith(".") and entry != keep:
                    size = sum(file.stat().st_size for file in entry.iterdir())
                    found.append((entry.stat().st_mtime, size, entry))
        left = most_bytes - _bytes_in(keep)
        before = time.time() - self._rest_seconds
        for used_at, size, entry in sorted(found, reverse=True):
            left -= size
            if left < 0 and used_at <= before:
                shutil.rmtree(entry, ignore_errors=True)


def _bytes_in(folder: Path) -> int:
    """Return the size of a folder's files; 0 if a full disk had no room for the folder itself."""
    return sum(file.stat().st_size for file in folder.iterdir()) if folder.is_dir() else 0


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(where: str, what: str) -> CheckpointCorruptError:
    return CheckpointCorruptError(
        f"{where}: {what}", hint="resume from an earlier checkpoint, or restore this one from a backup"
    )
