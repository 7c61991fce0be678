"""Jobs in brief for lists, and what their owner notes about them."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from backend.gateway.dependencies import Tenant, body_of, describes
from backend.gateway.fair_routes import FairRoute, in_turn
from backend.gateway.visible import shown_to
from tinkergym.schema.events import MOST_JOBS_LISTED
from tinkergym.schema.summaries import JobLabels, JobSummaries

router = APIRouter(prefix="/v1/jobs", route_class=FairRoute)


@router.get("/summaries")
def list_summaries(
    request: Request,
    tenant: Tenant,
    limit: Annotated[int, Query(ge=1, le=MOST_JOBS_LISTED)] = 100,
    before: str = "",
) -> JobSummaries:
    """List jobs in brief, newest first, starting after `before`."""
    shown = shown_to(request, tenant)
    return JobSummaries(jobs=[shown.summary(one) for one in tenant.summaries(limit, before)])


@router.get("/{job_id}/labels")
def show_labels(tenant: Tenant, job_id: str) -> JobLabels:
    """Return the name, tags and note that its owner gave a job."""
    return tenant.labels(job_id)


@router.post("/{job_id}/labels", openapi_extra=describes(JobLabels))
async def set_labels(
    tenant: Tenant, job_id: str, labels: Annotated[JobLabels, Depends(body_of(JobLabels))]
) -> JobLabels:
    """Replace the name, tags and note of a job, and whether lists leave it out."""
    await in_turn(tenant.tenant_id, tenant.set_labels, job_id, labels)
    return labels
