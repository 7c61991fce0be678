"""The service's files by key: uploaded data, checkpoints, and what jobs keep next to them.

A key is a relative path with slashes. Records and callers use keys, never disk paths. `LocalBlobs` keeps them
in a folder, `ObjectBlobs` in an object store.

The contract, which the same tests check on both:

1. **Keys are immutable.** A key is written once, or again with the same content. What the attempts of a job
   may write differently has the lease's epoch in its key (`job-1/checkpoints/step-000010.e3`), so a worker
   that lost the job cannot change what its successor wrote.
2. **The database's row is the commit.** A blob counts from when a row names its key. What no row names is
   left over from a killed writer or a deleted job; `backend.store.collector` removes it a day later. Nothing
   is renamed, nothing is touched, and no start clears anything, so two services may start while a third one
   uploads.
3. **A folder is written with its manifest last.** `manifest.json` has the size and SHA-256 of each other
   file.
4. **Uploads stream, with bounded memory.** What is downloaded goes to a cache of the node, by hash, and is
   verified.
5. **Missing is not damaged.** A store that does not answer, or lacks what a row names, raises
   `BlobsUnavailableError`, and the job waits. Only content with another hash is damaged,
   `CheckpointCorruptError`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol, Self

from tinkergym.errors import CheckpointCorruptError
from tinkergym.schema.events import CheckpointView

MANIFEST = "manifest.json"


class BlobMissingError(LookupError):
    """No blob has this key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobInfo:
    """An entry of a listing."""

    key: str
    """Relative to the listed folder."""
    bytes: int
    written_at: float
    """Unix seconds, of the last `put`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFile:
    """A file in a folder's manifest."""

    bytes: int
    sha256: str


class Blobs(Protocol):
    """Blobs, and folders of blobs, by key.

    Every method may raise `BlobsUnavailableError`: the store does not answer.
    """

    def below(self, key: str) -> Self:
        """Return the blobs whose keys begin with `key/`; the view's keys are relative to it."""
        ...

    def where(self, key: str) -> str:
        """Return the path or URL of a blob or folder, for people only."""
        ...

    def put(self, key: str, content: bytes | bytearray) -> None:
        """Write a blob. It is durable when this returns, and invisible until then.

        Raises:
            StorageFullError: The disk or the bucket is full.
        """
        ...

    def get(self, key: str) -> bytes:
        """Return a blob.

        Raises:
            BlobMissingError: No blob has this key.
        """
        ...

    def put_file(self, key: str, path: Path) -> None:
        """Write a blob from a local file, in parts: its size is not limited by the memory.

        Raises:
            StorageFullError: The disk or the bucket is full.
        """
        ...

    @contextmanager
    def reading(self, key: str) -> Iterator[Path]:
        """Yield a local file with a blob of any size; nothing may be written there.

        Raises:
            BlobMissingError: No blob has this key.
        """
        ...

    def has(self, key: str) -> bool:
        """Return whether a blob or folder has this key."""
        ...

    def files(self, key: str = "") -> list[BlobInfo]:
        """Return all blobs in a folder and its subfolders, sorted by key; empty if there is no folder."""
        ...

    def folders(self, key: str = "") -> list[str]:
        """Return the names of a folder's subfolders, sorted."""
        ...

    def delete(self, key: str) -> int:
        """Remove a blob or folder if it exists; return how many bytes it had."""
        ...

    @contextmanager
    def filling(self, key: str) -> Iterator[Path]:
        """Yield a local path where the caller creates a folder with a manifest; after the block it is `key`.

        What an earlier try left there is replaced: only the holder of the key's epoch writes it, before a row
        names it.

        Raises:
            StorageFullError: The disk or the bucket is full.
        """
        ...

    def local(self, key: str, names: Collection[str] | None = None) -> Path:
        """Return a local folder with the files of a folder that a row names; nothing may be written there.

        Args:
            key: A folder that `filling` wrote.
            names: The files that are needed; None means all in the manifest.

        Raises:
            BlobsUnavailableError: The store lacks one of them.
            CheckpointCorruptError: A file has another size or hash than the manifest says.
        """
        ...

    def remove_drafts(self, *, before: float) -> None:
        """Remove unfinished files of killed writers that are older than this time, in Unix seconds."""
        ...


def listed_files(manifest: bytes, where: str) -> dict[str, ListedFile]:
    """Return the files in a folder's manifest.

    Raises:
        CheckpointCorruptError: It cannot be read; the message names `where`.
    """
    try:
        files = json.loads(manifest)["files"]
        found = {
            str(name): ListedFile(bytes=int(entry["bytes"]), sha256=str(entry["sha256"]))
            for name, entry in files.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointCorruptError(f"{where}: {MANIFEST} cannot be read: {error!r}") from error
    for name in found:
        if PurePosixPath(name).name != name:
            raise CheckpointCorruptError(f"{where}: {MANIFEST} names a file outside the folder: {name}")
    return found


def key_parts(key: str) -> tuple[str, ...]:
    """Return the parts of a key, none of which leads out of its folder."""
    parts = PurePosixPath(key).parts
    assert not key.startswith("/") and ".." not in parts, f"{key!r} is not a valid key"
    return parts


def new_checkpoint_key(job_id: str, agent: str, step: int, *, epoch: int, retry: int = 0) -> str:
    """Return the key, among the files of all jobs, under which a lease's holder writes a checkpoint.

    Args:
        job_id: The job.
        agent: The policy's agent.
        step: The step that it covers.
        epoch: The lease's.
        retry: How often this lease's holder has stored this step before.
    """
    again = f".{retry}" if retry else ""
    return f"{_checkpoints(job_id, agent)}/step-{step:06d}.e{epoch}{again}"


def checkpoint_key(job_id: str, agent: str, view: CheckpointView) -> str:
    """Return the key of a recorded checkpoint, among the files of all jobs."""
    # Records of earlier versions name no key.
    return view.key or f"{_checkpoints(job_id, agent)}/step-{view.step:06d}"


def _checkpoints(job_id: str, agent: str) -> str:
    return f"{job_id}/checkpoints/{agent}".rstrip("/")


def tenant_folder(tenant_id: str) -> str:
    """Return the folder of what a tenant sends, among those of all tenants."""
    # Tenant ids come from an operator and may contain characters that a key may not.
    return hashlib.sha256(tenant_id.encode()).hexdigest()[:32]
