"""PEFT adapters from anywhere: sent in parts, checked, and kept as the policy of a completed job."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request

from backend.admission.offered_models import require_offered
from backend.catalog.adapter_files import SentAdapter
from backend.gateway.dependencies import Body, Tenant, body_of, describes
from backend.gateway.fair_threads import FairRoute, FairThreads, in_turn
from backend.gateway.shown_views import shown_to
from backend.gateway.wiring import GatewayParts, parts_of
from backend.store.adapter_parts import AdapterParts
from backend.store.blobs import new_checkpoint_key
from backend.store.store import TenantStore
from backend.store.tenant_submissions import SENT_ADAPTER
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.adapter_upload import AdapterUpload
from tinkergym.schema.events import CheckpointView
from tinkergym.schema.jobs.own_loop import PolicySpec
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.model import WireModel

router = APIRouter(prefix="/v1/adapters", route_class=FairRoute)

Sha256Path = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$")]
_FILE = {"requestBody": {"required": True, "content": {"application/octet-stream": {}}}}


class PartKept(WireModel):
    """A part is stored."""

    sha256: str


@router.put("/parts/{sha256}", openapi_extra=_FILE)
async def put_part(request: Request, tenant: Tenant, sha256: Sha256Path, body: Body) -> PartKept:
    """Store a part of an adapter's weights under its hash, until the adapter is complete."""
    config = parts_of(request).config
    parts = AdapterParts(config.uploads, tenant.tenant_id)
    threads: FairThreads = request.app.state.upload_writes
    await threads.run(
        tenant.tenant_id, partial(parts.add, sha256, body, most_bytes=config.limits.adapter_bytes)
    )
    return PartKept(sha256=sha256)


@router.post("", status_code=201, openapi_extra=describes(AdapterUpload))
async def add_adapter(
    request: Request, tenant: Tenant, wanted: Annotated[AdapterUpload, Depends(body_of(AdapterUpload))]
) -> JobView:
    """Check an adapter against its base model, and keep it as the policy of a job that has completed.

    Sending the same adapter again returns the same job.
    """
    parts = parts_of(request)
    made_of = wanted.model_dump_json(exclude={"parts", "name"})
    digest = hashlib.sha256(made_of.encode()).hexdigest()
    shown = shown_to(request, tenant)
    earlier = await in_turn(tenant.tenant_id, tenant.job_of_request, f"{SENT_ADAPTER}{digest}", digest)
    if earlier is not None:
        return shown.job(earlier)
    threads: FairThreads = request.app.state.job_checks
    return shown.job(await threads.run(tenant.tenant_id, partial(_kept, parts, tenant, wanted, digest)))


def _kept(parts: GatewayParts, tenant: TenantStore, wanted: AdapterUpload, digest: str) -> JobView:
    config = parts.config
    require_offered(config, tenant, wanted.model)
    model = parts.catalog.known_as(wanted.model)
    sent = AdapterParts(config.uploads, tenant.tenant_id)
    job_id = tenant.new_job_id()
    key = new_checkpoint_key(job_id, "", 1, epoch=0)
    with config.job_files.filling(key) as folder:
        folder.mkdir(parents=True)
        upload = folder / "upload"
        most = config.limits.adapter_bytes
        if sent.join(wanted.parts, upload, most_bytes=most) != wanted.sha256:
            raise InvalidRequestError("the parts do not have the adapter's SHA-256", hint="send it again")
        read = SentAdapter(
            file=upload, config=wanted.config, base_sha256=wanted.base_sha256, extra={"job_id": job_id}
        )
        written = parts.catalog.adapter(model, read, folder)
        upload.unlink()
        tenant.require_room_for_adapter(sum(written.files.values()), config.limits.adapters_bytes)
        spec = PolicySpec.model_validate({"model": model, "adapter": written.adapter, "name": wanted.name})
        checked, _ = parts.admission.check(tenant, spec)
        view = CheckpointView(step=1, policy_version=1, key=key, sha256=written.sha256, files=written.files)
    job = tenant.add_adapter(job_id, checked, view, digest, most_bytes=config.limits.adapters_bytes)
    sent.drop(wanted.parts)
    return job
