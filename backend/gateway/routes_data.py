"""Datasets for SFT and preference jobs: chunks identified by hash, and the datasets made of them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request

from backend.gateway.dependencies import Body, Tenant, aside, body_of, describes, refuse_many_values
from backend.gateway.fair_threads import FairRoute, FairThreads
from backend.gateway.wiring import parts_of
from backend.store.uploads import ChunkSummary, Uploads, read_chunk
from tinkergym.errors import PayloadTooLargeError
from tinkergym.schema.model import WireModel
from tinkergym.schema.uploaded_data import DataChunk, DataManifest, DataView

router = APIRouter(prefix="/v1/data", route_class=FairRoute)

Sha256Path = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]


class ChunkKept(WireModel):
    """A chunk is stored."""

    sha256: str


@router.put("/chunks/{sha256}", openapi_extra=describes(DataChunk))
async def put_chunk(request: Request, tenant: Tenant, sha256: Sha256Path, body: Body) -> ChunkKept:
    """Store a chunk under its hash. If there is no room, the oldest data that no job needs is deleted."""
    parts = parts_of(request)
    uploads = Uploads(parts.config.uploads, tenant.tenant_id, room=parts.upload_room)
    most = parts.config.limits.data_bytes

    def read() -> ChunkSummary:
        refuse_many_values(request, body)
        return read_chunk(sha256, body)

    summary = await aside(request, read, body)

    def keep() -> None:
        try:
            uploads.add_chunk(sha256, body, most_bytes=most, summary=summary)
        except PayloadTooLargeError:
            uploads.make_room(most - len(body), in_use=tenant.data_in_use())
            uploads.add_chunk(sha256, body, most_bytes=most, summary=summary)

    threads: FairThreads = request.app.state.upload_writes
    await threads.run(tenant.tenant_id, keep)
    return ChunkKept(sha256=sha256)


@router.post("", openapi_extra=describes(DataManifest))
def complete(
    request: Request, tenant: Tenant, manifest: Annotated[DataManifest, Depends(body_of(DataManifest))]
) -> DataView:
    """Create a dataset from chunks, or return which are missing."""
    config = parts_of(request).config
    uploads = Uploads(config.uploads, tenant.tenant_id)
    return uploads.complete(manifest, most_bytes=config.limits.data_bytes, in_use=tenant.data_in_use())


@router.get("/{data_id}")
def show(request: Request, tenant: Tenant, data_id: Sha256Path) -> DataView:
    """Describe a dataset."""
    return Uploads(parts_of(request).config.uploads, tenant.tenant_id).view(data_id)
