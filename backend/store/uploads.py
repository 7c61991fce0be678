"""Uploaded data: chunks of token ids as files named by their hash, and the sets they form.

Each tenant has a separate folder. When a method returns, its files are on disk; repeated writes produce the
same bytes, so a repeated upload has no effect.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

from pydantic import Field

from backend.errors import BlobsUnavailableError
from backend.store.blobs import BlobInfo, BlobMissingError, Blobs, tenant_folder
from backend.store.usage import QuotaRoom
from tinkergym.errors import (
    CheckpointCorruptError,
    InvalidRequestError,
    NotFoundError,
    PayloadTooLargeError,
)
from tinkergym.schema.model import WireModel
from tinkergym.schema.parsing import parse_json
from tinkergym.schema.uploaded_data import DataChunk, DataKind, DataManifest, DataView, TokenSequence

_LATELY_SECONDS = 3600.0
"""An upload that is going on has younger chunks."""
_MOST_CHUNKS = 20_000
"""Per tenant. A small file uses more disk space than its size, and each upload checks all files."""
_TOO_MUCH = "train on less data, or ask the operator to raise limits.data_bytes"


class ChunkSummary(WireModel):
    """A chunk's summary; its file is written after the chunk's own."""

    kind: DataKind
    bytes: int
    records: int
    tokens: int
    trained_tokens: int
    longest: int
    largest_token_id: int
    images: list[str] = Field([])
    """Hashes of the images in its records."""
    most_images: int
    """Most images of one sequence."""


class StoredSet(WireModel):
    """A complete data set."""

    view: DataView
    chunks: list[str]


class Uploads:
    """One tenant's uploaded data."""

    def __init__(
        self,
        uploads: Blobs,
        tenant_id: str,
        *,
        room: QuotaRoom | None = None,
        most_chunks: int = _MOST_CHUNKS,
    ) -> None:
        """Use the tenant's folder of `uploads`; it is created on the first write.

        Args:
            uploads: The data of all tenants.
            tenant_id: The tenant.
            room: Shared by all uses in this process; without it, each new chunk lists all files.
            most_chunks: The most that the tenant may have.
        """
        self._blobs = uploads.below(tenant_folder(tenant_id))
        self._tenant_id, self._room, self._most_chunks = tenant_id, room or QuotaRoom(), most_chunks

    def add_chunk(
        self,
        sha256: str,
        body: bytes | bytearray,
        *,
        most_bytes: int,
        summary: ChunkSummary | None = None,
    ) -> None:
        """Store a chunk.

        Args:
            sha256: The hash of the body.
            body: A `DataChunk` as JSON.
            most_bytes: The tenant's limit for all data.
            summary: The result of `read_chunk`, if the body was read before.

        Raises:
            InvalidRequestError: The body does not match the hash, or is not a chunk.
            PayloadTooLargeError: The tenant's disk quota is used up.
            StorageFullError: The disk is full.
        """
        summary = summary or read_chunk(sha256, body)
        if self._blobs.has(_summary(sha256)):
            return
        if not self._room.take(self._tenant_id, most_bytes, len(body)):
            self._find_room(len(body), most_bytes)
        self._blobs.put(_chunk(sha256), body)
        # Last: whether a chunk is stored is asked of its summary.
        self._blobs.put(_summary(sha256), summary.model_dump_json().encode())

    def _find_room(self, more: int, most_bytes: int) -> None:
        """List all files, once, and note how many more may be added."""
        files = list(self._blobs.files())
        used = sum(blob.bytes for blob in files)
        chunks = sum(blob.key.startswith("chunks/") and blob.key.endswith(".json") for blob in files)
        self._refuse_too_much(more, most_bytes, used)
        if chunks >= self._most_chunks:
            raise PayloadTooLargeError(
                f"a tenant can have at most {self._most_chunks} chunks of data",
                hint="send larger chunks",
                field="data",
            )
        self._room.seen(
            self._tenant_id,
            most_bytes,
            size_left=most_bytes - used - more,
            files_left=self._most_chunks - chunks - 1,
        )

    def make_room(self, most_bytes: int, *, in_use: Collection[str]) -> int:
        """Remove the oldest sets until at most `most_bytes` are left, and return the remaining size.

        Removed data is sent again when it is needed again. Chunks of sets `in_use` and recently received
        chunks stay, because their set may not be complete yet.
        """
        stored = sorted(self._blobs.files("sets"), key=lambda blob: blob.written_at)
        # Also those of uploads that were interrupted before the set was complete.
        used = self._drop_loose_chunks()
        for blob in stored:
            if used <= most_bytes and self._count() < self._most_chunks:
                break
            data_id = _name(blob)
            if data_id not in in_use:
                self._blobs.delete(_set(data_id))
                used = self._drop_loose_chunks()
        return used

    def _drop_loose_chunks(self) -> int:
        """Remove chunks that belong to no set; return the size of the others."""
        drop_loose_chunks(self._blobs, before=time.time() - _LATELY_SECONDS)
        return self.used_bytes()

    def complete(self, manifest: DataManifest, *, most_bytes: int, in_use: Collection[str] = ()) -> DataView:
        """Combine chunks into a set, or return which are missing.

        The oldest sets are removed if space is needed.

        Args:
            manifest: The chunks. A chunk may be listed several times, for repeated rows.
            most_bytes: The limit for the tenant's data and for this set.
            in_use: Sets that must stay.

        Raises:
            InvalidRequestError: A chunk has a different kind.
            PayloadTooLargeError: It is more than `most_bytes`.
            StorageFullError: The disk is full.
        """
        view = DataView(data_id=manifest.data_id, kind=manifest.kind)
        missing = self._missing(manifest)
        if missing:
            return view.model_copy(update={"missing": missing})
        known = {
            sha: ChunkSummary.model_validate_json(self._blobs.get(_summary(sha)))
            for sha in set(manifest.chunks)
        }
        summaries = [known[sha] for sha in manifest.chunks]
        if any(summary.kind != manifest.kind for summary in summaries):
            raise InvalidRequestError(f"a chunk does not have the kind {manifest.kind!r}", field="kind")
        # A chunk stored once on disk is loaded as often as it is listed.
        size = sum(summary.bytes for summary in summaries)
        if size > most_bytes:
            raise PayloadTooLargeError(
                f"counting repeated chunks, the data has {size} bytes, more than the limit of {most_bytes}",
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
        key = _set(manifest.data_id)
        stored = StoredSet(view=view, chunks=manifest.chunks).model_dump_json().encode()
        if not self._blobs.has(key) and self.used_bytes() + len(stored) > most_bytes:
            self.make_room(most_bytes - len(stored), in_use=in_use)
            self._refuse_too_much(len(stored), most_bytes, self.used_bytes())
            missing = self._missing(manifest)
            if missing:  # they belonged to a removed set
                return DataView(data_id=manifest.data_id, kind=manifest.kind, missing=missing)
        self._blobs.put(key, stored)
        return view

    def view(self, data_id: str) -> DataView:
        """Describe a set.

        Raises:
            NotFoundError: It was never completed, or is another tenant's.
        """
        return self._stored(data_id).view

    def images(self, data_id: str) -> tuple[set[str], int]:
        """Return the hashes of the images in a set, and the most that one of its sequences has.

        Raises:
            NotFoundError: It was never completed, or is another tenant's.
        """
        every: set[str] = set()
        most = 0
        for chunk in set(self._stored(data_id).chunks):
            summary = ChunkSummary.model_validate_json(self._blobs.get(_summary(chunk)))
            every.update(summary.images)
            most = max(most, summary.most_images)
        return every, most

    def records(self, data_id: str) -> Iterator[list[TokenSequence]]:
        """Read a set chunk by chunk; see `chunks`."""
        for chunk in self.chunks(data_id):
            yield from chunk.records

    def chunks(self, data_id: str) -> Iterator[DataChunk]:
        """Read the chunks of a set.

        Raises:
            NotFoundError: It was never completed, or is another tenant's.
            CheckpointCorruptError: A chunk differs from what was written.
            BlobsUnavailableError: A chunk is missing, or cannot be read now.
        """
        for sha256 in self._stored(data_id).chunks:
            try:
                body = self._blobs.get(_chunk(sha256))
            except BlobMissingError:
                where = self._blobs.where(_chunk(sha256))
                raise BlobsUnavailableError(
                    f"blob store unavailable: {where} is missing, although a data set names it",
                    hint="restore it from a backup; the job waits until it is there",
                ) from None
            if hashlib.sha256(body).hexdigest() != sha256:
                raise CheckpointCorruptError(
                    f"the uploaded chunk {sha256} differs from what was written", hint="start the job again"
                )
            yield DataChunk.model_validate_json(body)

    def used_bytes(self) -> int:
        """Return the size of all chunks and sets."""
        return sum(blob.bytes for blob in self._blobs.files())

    def _count(self) -> int:
        return len(_chunks(self._blobs))

    def _missing(self, manifest: DataManifest) -> list[str]:
        return [sha for sha in dict.fromkeys(manifest.chunks) if not self._blobs.has(_summary(sha))]

    def _refuse_too_much(self, more: int, most_bytes: int, used: int) -> None:
        if used + more > most_bytes:
            raise PayloadTooLargeError(
                f"this upload would exceed the limit of {most_bytes} bytes of data per tenant ({used} are "
                f"used)",
                hint=_TOO_MUCH,
                field="data",
            )

    def _stored(self, data_id: str) -> StoredSet:
        return _stored(self._blobs, data_id)


def drop_loose_chunks(uploads: Blobs, *, before: float) -> None:
    """Remove a tenant's chunks that belong to no set, and are older than this time in Unix seconds."""
    wanted: set[str] = set()
    for blob in uploads.files("sets"):
        with suppress(NotFoundError):  # another request has just removed it
            wanted.update(_stored(uploads, _name(blob)).chunks)
    for blob in _chunks(uploads):
        if _name(blob) not in wanted and blob.written_at < before:
            # The summary first: without it the chunk does not count as stored.
            uploads.delete(_summary(_name(blob)))
            uploads.delete(_chunk(_name(blob)))


def _chunks(uploads: Blobs) -> list[BlobInfo]:
    return [blob for blob in uploads.files("chunks") if blob.key.endswith(".json")]


def _stored(uploads: Blobs, data_id: str) -> StoredSet:
    try:
        return StoredSet.model_validate_json(uploads.get(_set(data_id)))
    except BlobMissingError:
        raise NotFoundError(
            f"there is no data set {data_id}",
            hint="upload it first, as client.sft(...) does",
            field="data",
        ) from None


def _chunk(sha256: str) -> str:
    return f"chunks/{sha256}.json"


def _summary(sha256: str) -> str:
    return f"chunks/{sha256}.summary"


def _set(data_id: str) -> str:
    return f"sets/{data_id}.json"


def _name(blob: BlobInfo) -> str:
    return blob.key.removesuffix(".json")


def read_chunk(sha256: str, body: bytes | bytearray) -> ChunkSummary:
    """Check and summarize a chunk, a `DataChunk` as JSON.

    Raises:
        InvalidRequestError: The body does not match the hash, or is not a chunk.
    """
    if hashlib.sha256(body).hexdigest() != sha256:
        raise InvalidRequestError(
            "the body does not match the SHA-256 in the URL", hint="send it again", code="wrong_hash"
        )
    return summarise(parse_json(DataChunk, body), len(body))


def summarise(chunk: DataChunk, size: int) -> ChunkSummary:
    """Summarize a chunk's contents."""
    sequences: Sequence[TokenSequence] = [sequence for record in chunk.records for sequence in record]
    return ChunkSummary(
        kind=chunk.kind,
        bytes=size,
        records=len(chunk.records),
        tokens=sum(len(sequence.token_ids) for sequence in sequences),
        trained_tokens=sum(sequence.trained_tokens for sequence in sequences),
        longest=max((len(sequence.token_ids) for sequence in sequences), default=0),
        largest_token_id=max((max(sequence.token_ids) for sequence in sequences), default=0),
        images=sorted({image.sha256 for sequence in sequences for image in sequence.images}),
        most_images=max((len(sequence.images) for sequence in sequences), default=0),
    )
