"""Images of episodes and datasets: each is sent once, as a file under the hash of its bytes."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request, Response

from backend.gateway.dependencies import Body, Tenant, body_of, describes
from backend.gateway.fair_threads import FairRoute, FairThreads
from backend.gateway.wiring import GatewayParts, parts_of
from backend.store.images import Images
from backend.store.store import TenantStore
from tinkergym.schema.uploaded_data import ImageKept, ImageNames

router = APIRouter(prefix="/v1/images", route_class=FairRoute)

Sha256Path = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
_FILE: dict[str, dict[str, str]] = {"image/png": {}, "image/jpeg": {}, "image/webp": {}}


@router.put("/{sha256}", openapi_extra={"requestBody": {"required": True, "content": _FILE}})
async def put_image(request: Request, tenant: Tenant, sha256: Sha256Path, body: Body) -> ImageKept:
    """Store a PNG, JPEG or WebP file under the SHA-256 of its bytes."""
    threads: FairThreads = request.app.state.image_checks
    await threads.run(tenant.tenant_id, partial(_keep, parts_of(request), tenant, sha256, body))
    return ImageKept(sha256=sha256)


def _keep(parts: GatewayParts, tenant: TenantStore, sha256: str, data: bytes | bytearray) -> None:
    """Check an image, and store it for this tenant within the service's limits; blocks meanwhile."""
    images = Images(parts.config.images, tenant.images, room=parts.image_room, check=parts.image_check)
    images.add(sha256, data, parts.config.limits)


@router.get("/{sha256}", response_class=Response, responses={200: {"content": _FILE}})
def show_image(request: Request, tenant: Tenant, sha256: Sha256Path) -> Response:
    """Return an image that the tenant has sent."""
    body = Images(parts_of(request).config.images, tenant.images).read(sha256)
    # Its bytes never change. No page may run it as anything but an image.
    headers = {
        "Cache-Control": "private, max-age=86400, immutable",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; sandbox",
    }
    return Response(body, media_type=_media_type(body), headers=headers)


@router.post("/missing", openapi_extra=describes(ImageNames))
def missing(
    request: Request, tenant: Tenant, wanted: Annotated[ImageNames, Depends(body_of(ImageNames))]
) -> ImageNames:
    """Return which of these images must still be sent."""
    images = Images(parts_of(request).config.images, tenant.images)
    return ImageNames(images=images.missing(wanted.images))


def _media_type(body: bytes) -> str:
    if body.startswith(b"\x89PNG"):
        return "image/png"
    return "image/jpeg" if body.startswith(b"\xff\xd8") else "image/webp"
