"""Whether the service can write to its blob store, asked before anything starts."""

from __future__ import annotations

import asyncio
import os

from backend.errors import BlobsUnavailableError, ConfigError
from backend.store.blobs import Blobs


def require_usable(blobs: Blobs) -> None:
    """Write, read and delete a small blob.

    Raises:
        ConfigError: The bucket or folder does not exist, may not be written, or does not answer.
        StorageFullError: It is full.
    """
    key, content = f"probe-{os.urandom(8).hex()}", b"written by tinkergym serve to try the store"
    try:
        blobs.put(key, content)
        found = blobs.get(key)
        blobs.delete(key)
    except BlobsUnavailableError as error:
        cause = error.__cause__
        where = blobs.where("")
        if isinstance(cause, FileNotFoundError):
            what, hint = f"the bucket of {where} does not exist", "create it, or correct the setting blobs"
        elif isinstance(cause, PermissionError):
            what = f"the credentials may not write, read and delete in {where}: {cause}"
            hint = "allow GetObject, PutObject, DeleteObject and ListBucket there"
        elif isinstance(cause, TimeoutError | asyncio.TimeoutError):
            what, hint = f"{where} does not answer", "check the network, and AWS_ENDPOINT_URL if it is set"
        else:
            what = f"{where} cannot be used: {type(cause).__name__}: {cause}"
            hint = "check the setting blobs, the credentials, and AWS_ENDPOINT_URL if it is not Amazon's"
        raise ConfigError(what, hint=hint, field="blobs") from None
    except OSError as error:
        raise ConfigError(
            f"{blobs.where('')} cannot be written: {error.strerror or error}",
            hint="choose another folder for blobs",
            field="blobs",
        ) from None
    if found != content:
        raise ConfigError(f"{blobs.where('')} returns other bytes than were written", field="blobs")
