"""Blobs that count how often they are listed, which takes longer the more there are."""

from __future__ import annotations

from pathlib import Path

from backend.store.blobs import BlobInfo
from backend.store.local_blobs import LocalBlobs


class CountingBlobs(LocalBlobs):
    """As `LocalBlobs`, for a folder and those below it."""

    def __init__(self, root: Path, listed: list[str] | None = None) -> None:
        """`listed` gets the key of each listing."""
        super().__init__(root)
        self.listed = [] if listed is None else listed

    def below(self, key: str) -> CountingBlobs:
        """See `Blobs`."""
        return CountingBlobs(self._path(key), listed=self.listed)

    def files(self, key: str = "") -> list[BlobInfo]:
        """See `Blobs`."""
        self.listed.append(key)
        return super().files(key)
