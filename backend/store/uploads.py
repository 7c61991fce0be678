"""Uploaded data: chunks of token ids as files, under their own hash, and the sets that they make.

Each tenant has a folder of its own. What a method acknowledged is on the disk; whatever is written twice is
the same to the byte, so a repeated upload changes nothing.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tinkergym.errors import (
    CheckpointCorruptError,
    InvalidRequestError,
    NotFoundError,
    PayloadTooLargeError,
    StorageFullError,
)
from tinkergym.schema.data import DataChunk, DataKind, DataManifest, DataView, TokenSequence
from tinkergym.schema.model import WireModel
from tinkergym.schema.parsing import parse_json

_LATELY_SECONDS = 3600.0
_MOST_CHUNKS = 20_000
"""Of one tenant. A small file takes more of the disk than its size, and each upload looks at all of them."""
_TOO_MUCH = "train on less data, or let the operator raise limits.data_bytes"


class ChunkSummary(WireModel):
    """What is known of a chunk without reading it; its file is written last, when the chunk's is there."""

    kind: DataKind
    bytes: int
    records: int
    tokens: int
    trained_tokens: int
    longest: int
    largest_token_id: int


class StoredSet(WireModel):
    """A complete data set."""

    view: DataView
    chunks: list[str]


def remove_unfinished(root: Path) -> None:
    """Remove what writers that were killed left half written; nobody may be writing."""
    for part in root.glob("*/*/.*"):
        part.unlink(missing_ok=True)
    for chunk in root.glob("*/chunks/*.json"):
        if not chunk.with_suffix(".summary").is_file():
            chunk.unlink()


class Uploads:
    """One tenant's uploaded data."""

    def __init__(self, root: Path, tenant_id: str, *, most_chunks: int = _MOST_CHUNKS) -> None:
        """Use the tenant's folder below `root`; nothing is made until something is written."""
        # A tenant's id comes from an operator and may hold anything; a folder's name may not.
        folder = root / hashlib.sha256(tenant_id.encode()).hexdigest()[:32]
        self._chunks, self._sets = folder / "chunks", folder / "sets"
        self._most_chunks = most_chunks

    def add_chunk(self, sha256: str, body: bytes | bytearray, *, most_bytes: int) -> None:
        """Keep a chunk.

        Args:
            sha256: Its name.
            body: A `DataChunk` as JSON.
            most_bytes: That the tenant may have in all.

        Raises:
            InvalidRequestError: The body is not what its name says, or no chunk.
            PayloadTooLargeError: The tenant's share of the disk is used up.
            StorageFullError: The disk is full.
        """
        if hashlib.sha256(body).hexdigest() != sha256:
            raise InvalidRequestError("the body's SHA-256 is not the chunk's name", hint="send it again")
        if self._summary_file(sha256).is_file():
            return
        chunk = parse_json(DataChunk, body)
        self._refuse_too_much(len(body), most_bytes)
        if self._count() >= self._most_chunks:
            raise PayloadTooLargeError(
                f"a tenant may have {self._most_chunks} chunks of data",
                hint="send larger chunks",
                field="data",
            )
        with _full_disk_named(self._chunks):
            self._chunks.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write(self._chunks / f"{sha256}.json", body)
            summary = summarise(chunk, len(body)).model_dump_json()
            _write(self._summary_file(sha256), summary.encode())

    def make_room(self, most_bytes: int, *, in_use: Collection[str]) -> int:
        """Remove the oldest sets until no more than `most_bytes` are left, and return what is left.

        Whoever trains on removed data again sends it again. Chunks of sets that are `in_use` stay, and so do
        chunks that arrived lately: a set may be on its way.
        """
        stored = sorted(self._sets.glob("*.json"), key=lambda path: path.stat().st_mtime)
        used = self._drop_loose_chunks()  # also of uploads that broke off before they were a set
        for path in stored:
            if used <= most_bytes and self._count() < self._most_chunks:
                break
            if path.stem not in in_use:
                path.unlink(missing_ok=True)
                used = self._drop_loose_chunks()
        return used

    def _drop_loose_chunks(self) -> int:
        """Remove chunks that belong to no set; return the size of the others."""
        wanted = {
            name
            for path in self._sets.glob("*.json")
            for name in StoredSet.model_validate_json(path.read_bytes()).chunks
        }
        before = time.time() - _LATELY_SECONDS
        for file in self._chunks.glob("*.json"):
            if file.stem not in wanted and file.stat().st_mtime < before:
                # The summary first: without it a chunk counts as not there.
                self._summary_file(file.stem).unlink(missing_ok=True)
                file.unlink(missing_ok=True)
        return self.used_bytes()

    def complete(self, manifest: DataManifest, *, most_bytes: int, in_use: Collection[str] = ()) -> DataView:
        """Make a set of chunks, or say which are missing. Where there is no room, the oldest sets go.

        Args:
            manifest: The chunks. One may come several times, as where rows repeat themselves.
            most_bytes: That the tenant may have in all, and that the set's chunks may have together.
            in_use: Sets that stay in any case.

        Raises:
            InvalidRequestError: A chunk is of another kind.
            PayloadTooLargeError: It is more than `most_bytes`.
            StorageFullError: The disk is full.
        """
        view = DataView(data_id=manifest.data_id, kind=manifest.kind)
        missing = self._missing(manifest)
        if missing:
            return view.model_copy(update={"missing": missing})
        known = {
            sha: ChunkSummary.model_validate_json(self._summary_file(sha).read_bytes())
            for sha in set(manifest.chunks)
        }
        summaries = [known[sha] for sha in manifest.chunks]
        if any(summary.kind != manifest.kind for summary in summaries):
            raise InvalidRequestError(f"a chunk is not of the kind {manifest.kind!r}", field="kind")
        # What is on the disk once is in the memory of whoever trains on it as often as it is named.
        size = sum(summary.bytes for summary in summaries)
        if size > most_bytes:
            raise PayloadTooLargeError(
                f"every repetition of a chunk counted, the data has {size} bytes of at most {most_bytes}",
                hint=_TOO_MUCH,
                field="data",
            )
        view = DataView(
            data_id=manifest.data_id,
            kind=manifest.kind,
            records=sum(summary.records for summary in summaries),
            tokens=sum(summary.tokens for summary in summaries),
            trained_tokens=sum(summary.trained_tokens for summary in summaries),
            longest=max(summary.longest for summary in summaries),
            largest_token_id=max(summary.largest_token_id for summary in summaries),
        )
        file = self._set_file(manifest.data_id)
        stored = StoredSet(view=view, chunks=manifest.chunks).model_dump_json().encode()
        if not file.is_file() and self.used_bytes() + len(stored) > most_bytes:
            self.make_room(most_bytes - len(stored), in_use=in_use)
            self._refuse_too_much(len(stored), most_bytes)
            missing = self._missing(manifest)
            if missing:  # they were a set's that went
                return DataView(data_id=manifest.data_id, kind=manifest.kind, missing=missing)
        with _full_disk_named(self._sets):
            self._sets.mkdir(parents=True, exist_ok=True, mode=0o700)
            _write(file, stored)
        return view

    def view(self, data_id: str) -> DataView:
        """Describe a set.

        Raises:
            NotFoundError: It was never completed, or is another tenant's.
        """
        return self._stored(data_id).view

    def records(self, data_id: str) -> Iterator[list[TokenSequence]]:
        """Read a set, chunk by chunk.

        Raises:
            NotFoundError: It was never completed, or is another tenant's.
            CheckpointCorruptError: A chunk is not the one that was written.
        """
        for sha256 in self._stored(data_id).chunks:
            path = self._chunks / f"{sha256}.json"
            try:
                body = path.read_bytes()
            except FileNotFoundError:
                body = b""
            if hashlib.sha256(body).hexdigest() != sha256:
                raise CheckpointCorruptError(
                    f"the uploaded data in {path} is not what was written", hint="start the job again"
                )
            yield from DataChunk.model_validate_json(body).records

    def used_bytes(self) -> int:
        """Return the size of all chunks and sets."""
        folders = [folder for folder in (self._chunks, self._sets) if folder.is_dir()]
        return sum(_size(entry) for folder in folders for entry in os.scandir(folder))

    def _count(self) -> int:
        return sum(1 for _ in self._chunks.glob("*.json"))

    def _missing(self, manifest: DataManifest) -> list[str]:
        return [sha for sha in dict.fromkeys(manifest.chunks) if not self._summary_file(sha).is_file()]

    def _refuse_too_much(self, more: int, most_bytes: int) -> None:
        used = self.used_bytes()
        if used + more > most_bytes:
            raise PayloadTooLargeError(
                f"this upload needs more than the {most_bytes} bytes of data that a tenant may have "
                f"({used} are used)",
                hint=_TOO_MUCH,
                field="data",
            )

    def _stored(self, data_id: str) -> StoredSet:
        try:
            return StoredSet.model_validate_json(self._set_file(data_id).read_bytes())
        except FileNotFoundError:
            raise NotFoundError(
                f"there is no data set {data_id}",
                hint="upload it first, as client.sft(...) does",
                field="data",
            ) from None

    def _summary_file(self, sha256: str) -> Path:
        return self._chunks / f"{sha256}.summary"

    def _set_file(self, data_id: str) -> Path:
        return self._sets / f"{data_id}.json"


def summarise(chunk: DataChunk, size: int) -> ChunkSummary:
    """Count what a chunk holds."""
    sequences: Sequence[TokenSequence] = [sequence for record in chunk.records for sequence in record]
    return ChunkSummary(
        kind=chunk.kind,
        bytes=size,
        records=len(chunk.records),
        tokens=sum(len(sequence.token_ids) for sequence in sequences),
        trained_tokens=sum(sequence.trained_tokens for sequence in sequences),
        longest=max(len(sequence.token_ids) for sequence in sequences),
        largest_token_id=max(max(sequence.token_ids) for sequence in sequences),
    )


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except FileNotFoundError:  # another request's, renamed or removed meanwhile
        return 0


def _write(path: Path, content: bytes | bytearray) -> None:
    """Write a file that is whole or not there."""
    part = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def _full_disk_named(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFullError(
                f"no space left on the disk for uploaded data in {folder}",
                hint="free space, then send the job again",
            ) from error
        raise
