"""The images of a pool's tenants."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from backend.config import ServiceConfig
from backend.processes.image_check import ImageCheck
from backend.store.images import Images
from backend.store.store import TenantStore
from backend.store.usage import QuotaRoom
from tinkergym.schema.uploaded_data import ImageKept, ImageNames


class PoolImages:
    """Stores and finds images by hash. A tenant sees its own only."""

    def __init__(self, config: ServiceConfig, tenant_store: Callable[[str], TenantStore]) -> None:
        self._config, self._tenant_store = config, tenant_store
        self._room, self._check = QuotaRoom(), ImageCheck()

    def require(self, tenant: str, hashes: Sequence[str]) -> None:
        """Refuse images that the tenant does not have."""
        if hashes:
            self._images(tenant).require(hashes, also_held=True)

    def missing(self, tenant: str, wanted: ImageNames) -> ImageNames:
        """Return which images the tenant has not sent."""
        return ImageNames(images=self._images(tenant).missing(wanted.images))

    def add(self, tenant: str, sha256: str, data: bytes) -> ImageKept:
        """Store an image for the tenant."""
        self._images(tenant).add(sha256, data, self._config.limits)
        return ImageKept(sha256=sha256)

    def _images(self, tenant: str) -> Images:
        rows = self._tenant_store(tenant).images
        return Images(self._config.images, rows, room=self._room, check=self._check)

    def close(self) -> None:
        """End the process that checks images."""
        self._check.close()
