"""Blobs that count how often they are listed, which takes as long as there are many."""

from __future__ import annotations

from pathlib import Path

from backend.store.blobs import BlobInfo, LocalBlobs


class CountingBlobs(LocalBlobs):
    """As `LocalBlobs`."""

    def __init__(self, root: Path) -> None:
        """`listings` begins at 0."""
        super().__init__(root)
        self.listings = 0

    def files(self, key: str = "") -> list[BlobInfo]:
        """As `LocalBlobs.files`, counted."""
        self.listings += 1
        return super().files(key)
