"""Jobs: submit, list, show, pause, resume, change, cancel, delete; and their checkpoints."""

from __future__ import annotations

import hashlib
import json
import logging
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import FileResponse
from pydantic import Field, ValidationError

from backend.admission.admission import description_too_large, readable
from backend.config import ServiceConfig
from backend.errors import BlobsUnavailableError
from backend.gateway.dependencies import Body, NumberPath, Tenant, aside, body_of, describes, json_object
from backend.gateway.fair_threads import FairRoute, FairThreads, in_turn
from backend.gateway.shown_views import shown_to
from backend.gateway.wiring import parts_of
from backend.store.blobs import checkpoint_key
from tinkergym.errors import InvalidRequestError, NotFoundError
from tinkergym.schema.events import CheckpointView, EvaluationEvent, UpdateRequest
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.jobs.view import (
    CLIENT_PACKS_HEADER,
    INSTALLED_PACKS,
    DeletedJob,
    InstalledPack,
    JobView,
)
from tinkergym.schema.model import WireModel
from tinkergym.schema.parsing import parse_spec
from tinkergym.schema.summaries import JobLabels, JobQuery, JobSummaries

_log = logging.getLogger(__name__)

router = APIRouter(prefix="/v1/jobs", route_class=FairRoute)


class EvaluationList(WireModel):
    """A job's evaluations, in order."""

    evaluations: list[EvaluationEvent] = Field(max_length=10_000_000)


class CheckpointList(WireModel):
    """A job's checkpoints, oldest first."""

    checkpoints: list[CheckpointView] = Field(max_length=100_000)


@router.post("", status_code=201, openapi_extra=describes(RLSpec))
async def create_job(
    request: Request,
    tenant: Tenant,
    body: Body,
    idempotency_key: Annotated[str, Header(max_length=200)] = "",
    tinkergym_packs: Annotated[str, Header(max_length=65_536)] = "",
) -> JobView:
    """Check a job in every way that does not need training, and queue it."""
    parts = parts_of(request)
    spec, sent = await aside(request, lambda: _read(body, parts.config), body)
    client_packs = _read_packs(tinkergym_packs, spec)
    # Before any check: if our response was lost, the client repeats the request, and what it names may be
    # gone or newer by now.
    earlier = await in_turn(tenant.tenant_id, tenant.job_of_request, idempotency_key, sent)
    shown = shown_to(request, tenant)
    if earlier is not None:
        return shown.job(earlier)
    # In its own threads: a check takes seconds, and many of them must not block all other routes.
    threads: FairThreads = request.app.state.job_checks
    spec, packs = await threads.run(
        tenant.tenant_id, partial(parts.admission.check, tenant, spec), abandon_on_cancel=True
    )
    job = await in_turn(
        tenant.tenant_id,
        tenant.create_job,
        spec,
        packs,
        idempotency_key,
        request_sha256=sent,
        client_packs=client_packs,
    )
    return shown.job(job)


@router.get("")
def list_jobs(request: Request, tenant: Tenant, query: Annotated[JobQuery, Query()]) -> JobSummaries:
    """List jobs in brief, newest first; `before` is the last one of the page before."""
    shown, found = shown_to(request, tenant), tenant.summaries(query)
    return found.model_copy(update={"jobs": [shown.summary(one) for one in found.jobs]})


@router.get("/{job_id}")
def show_job(request: Request, tenant: Tenant, job_id: str) -> JobView:
    """Show one job."""
    return shown_to(request, tenant).job(tenant.get_job(job_id))


@router.post("/{job_id}/cancel")
def cancel_job(request: Request, tenant: Tenant, job_id: str) -> JobView:
    """Ask a job to end. A running one ends when its worker next checks; an ended one is unchanged."""
    return shown_to(request, tenant).job(tenant.request_cancel(job_id))


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


@router.delete("/{job_id}")
def delete_job(request: Request, tenant: Tenant, job_id: str) -> DeletedJob:
    """Delete an ended job with its checkpoints."""
    job_id = tenant.get_job(job_id).job_id  # Only a valid job id may name a folder.
    job_files = parts_of(request).config.job_files
    size = 0
    # The rows first: files without rows are left over, and what is not removed now is later, by the
    # collector.
    tenant.delete_job(job_id)
    try:
        size = job_files.delete(job_id)
    except (OSError, BlobsUnavailableError):
        _log.exception("the files of %s could not be removed yet", job_id)
    return DeletedJob(job_id=job_id, bytes=size)


@router.get("/{job_id}/checkpoints")
def list_checkpoints(request: Request, tenant: Tenant, job_id: str) -> CheckpointList:
    """List the stored checkpoints."""
    shown = shown_to(request, tenant)
    return CheckpointList(checkpoints=[shown.checkpoint(view) for view in tenant.checkpoints(job_id)])


@router.get("/{job_id}/evaluations")
def list_evaluations(request: Request, tenant: Tenant, job_id: str) -> EvaluationList:
    """List the finished evaluations, in order."""
    runs = parts_of(request).runs
    return EvaluationList(evaluations=runs.evaluations(job_id, tenant.bodies_after))


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


@router.get("/{job_id}/checkpoints/{step}/files/{name}", response_class=FileResponse)
def download_file(
    request: Request,
    tenant: Tenant,
    *,
    job_id: str,
    step: NumberPath,
    name: str,
    agent: Annotated[str, Query(max_length=100)] = "",
) -> FileResponse:
    """Stream one file of a checkpoint; ranges are supported, so a download can be resumed."""
    for checkpoint in tenant.checkpoints(job_id, agent):
        # Only names listed by the checkpoint's writer: a path cannot be passed.
        if checkpoint.step == step and name in checkpoint.files:
            job_files = parts_of(request).config.job_files
            key = checkpoint_key(job_id, checkpoint.agent, checkpoint)
            path = job_files.local(key, [name]) / name
            return FileResponse(path, media_type="application/octet-stream", filename=name)
    raise NotFoundError(
        f"job {job_id!r} has no file {name!r} at step {step}",
        hint="older checkpoints are removed; list the existing ones",
    )


def _read(body: bytearray, config: ServiceConfig) -> tuple[JobSpec, str]:
    """Return the job in a body, and the hash of the body."""
    if len(body) > config.limits.job_bytes:  # Checked before any of its settings.
        raise description_too_large(config.limits)
    settings = json_object(body)
    return readable(parse_spec(settings), config), _sha256(settings)


def _sha256(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _read_packs(header: str, spec: JobSpec) -> list[InstalledPack]:
    """Return the client's list of installed packs; empty if it does not play episodes."""
    try:
        packs = INSTALLED_PACKS.validate_json(header) if header else []
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise InvalidRequestError(
            f"{CLIENT_PACKS_HEADER} is not a list of packs: {reason}",
            hint="leave out the header, or send a JSON list of name, distribution and version",
            field=CLIENT_PACKS_HEADER,
        ) from None
    return packs if spec.played_by in ("client", "script") else []
