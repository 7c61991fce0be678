"""What an owner may request for an unfinished job: pause, resume, change settings."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from backend.gateway.dependencies import Tenant, body_of, describes
from backend.gateway.fair_threads import FairRoute, in_turn
from backend.gateway.visible import shown_to
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.updates import UpdateRequest

router = APIRouter(prefix="/v1/jobs", route_class=FairRoute)


@router.post("/{job_id}/pause")
def pause_job(request: Request, tenant: Tenant, job_id: str) -> JobView:
    """Pause a job. A running one saves a checkpoint after its step and gives up its place."""
    return shown_to(request, tenant).job(tenant.request_pause(job_id))


@router.post("/{job_id}/resume")
def resume_job(request: Request, tenant: Tenant, job_id: str) -> JobView:
    """Queue a paused job again, or cancel a pending pause; other jobs are unchanged."""
    return shown_to(request, tenant).job(tenant.request_resume(job_id))


@router.post("/{job_id}/update", openapi_extra=describes(UpdateRequest))
async def update_job(
    request: Request,
    tenant: Tenant,
    job_id: str,
    wanted: Annotated[UpdateRequest, Depends(body_of(UpdateRequest))],
) -> JobView:
    """Change settings of a job from its next step on, and its budget at once."""
    view = await in_turn(tenant.tenant_id, tenant.change_settings, job_id, wanted.settings)
    return shown_to(request, tenant).job(view)
