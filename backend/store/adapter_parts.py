"""Parts of adapters on their way: kept until their adapter is complete, for a day at most."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from backend.store.blobs import BlobMissingError, Blobs, tenant_folder
from tinkergym.errors import InvalidRequestError, PayloadTooLargeError

_PARTS = "adapter-parts"


class AdapterParts:
    """One tenant's parts, each under its hash."""

    def __init__(self, uploads: Blobs, tenant_id: str) -> None:
        """Use the tenant's folder of `uploads`."""
        self._blobs = uploads.below(tenant_folder(tenant_id)).below(_PARTS)

    def add(self, sha256: str, body: bytes | bytearray, *, most_bytes: int) -> None:
        """Store a part.

        Raises:
            InvalidRequestError: It does not have this hash.
            PayloadTooLargeError: With it, the parts would be larger than an adapter may be.
            StorageFullError: The disk is full.
        """
        if hashlib.sha256(body).hexdigest() != sha256:
            raise InvalidRequestError(
                "the body does not match the SHA-256 in the URL", hint="send it again", code="wrong_hash"
            )
        waiting = {blob.key: blob.bytes for blob in self._blobs.files()}
        if sha256 in waiting:
            return
        if sum(waiting.values()) + len(body) > most_bytes:
            raise _too_large(most_bytes)
        self._blobs.put(sha256, body)

    def join(self, parts: Sequence[str], out: Path, *, most_bytes: int) -> str:
        """Write parts one after the other to a file, and return its SHA-256.

        Raises:
            InvalidRequestError: One was not sent.
            PayloadTooLargeError: Together, counting repeated ones, they are larger than an adapter may be.
        """
        digest, length = hashlib.sha256(), 0
        with out.open("wb") as file:
            for part in parts:
                try:
                    body = self._blobs.get(part)
                except BlobMissingError:
                    raise InvalidRequestError(
                        f"the part {part} of the adapter was not sent", hint="send it again", code="no_part"
                    ) from None
                if (length := length + len(body)) > most_bytes:
                    raise _too_large(most_bytes)
                digest.update(body)
                file.write(body)
        return digest.hexdigest()

    def drop(self, parts: Sequence[str]) -> None:
        """Remove parts."""
        for part in set(parts):
            self._blobs.delete(part)


def _too_large(most_bytes: int) -> PayloadTooLargeError:
    return PayloadTooLargeError(
        f"adapters of more than {most_bytes} bytes are not accepted",
        hint="use an adapter of a lower rank, or ask the operator to raise limits.adapter_bytes",
        field="source",
    )


def drop_old_parts(uploads: Blobs, *, before: float) -> None:
    """Remove a tenant's parts that are older than this time in Unix seconds."""
    for blob in uploads.files(_PARTS):
        if blob.written_at < before:
            uploads.delete(f"{_PARTS}/{blob.key}")
