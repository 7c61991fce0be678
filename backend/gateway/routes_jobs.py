"""Jobs: submit, list, show, cancel, delete; and their checkpoints."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import FileResponse
from pydantic import Field, ValidationError
from starlette.concurrency import run_in_threadpool

from backend.admission import (
    datasets,
    engine_bounds,
    learner_bounds,
    origins,
    remote_environments,
    seat_tools,
    several_models,
)
from backend.admission.models import require_offered
from backend.config import GatewayLimits
from backend.gateway.bodies import Body, Tenant, aside, describes, json_object
from backend.gateway.parts import GatewayParts, parts_of
from backend.gateway.shown import shown_to
from backend.store.job_folders import JobFolders
from backend.store.tenant import TenantStore
from tinkergym.errors import InvalidRequestError, NotFoundError, PayloadTooLargeError
from tinkergym.schema.checks import with_group_rewards
from tinkergym.schema.events import MOST_JOBS_LISTED, CheckpointView, EvaluationEvent
from tinkergym.schema.job_spec import JobSpec, PlayedSpec
from tinkergym.schema.jobs import (
    CLIENT_PACKS_HEADER,
    INSTALLED_PACKS,
    AnyJobSpec,
    DeletedJob,
    DistillationSpec,
    InstalledPack,
    JobView,
    WrittenDataSpec,
)
from tinkergym.schema.model import WireModel
from tinkergym.schema.parsing import parse_any_spec
from tinkergym.schema.policy_calls import PolicySpec
from tinkergym.schema.policy_refs import PolicyRef

router = APIRouter(prefix="/v1/jobs")


class JobList(WireModel):
    """A page of jobs, newest first."""

    jobs: list[JobView] = Field(max_length=MOST_JOBS_LISTED)


class EvaluationList(WireModel):
    """A job's evaluations, in order."""

    evaluations: list[EvaluationEvent] = Field(max_length=10_000_000)


class CheckpointList(WireModel):
    """A job's checkpoints, oldest first."""

    checkpoints: list[CheckpointView] = Field(max_length=100_000)


@router.post("", status_code=201, openapi_extra=describes(JobSpec))
async def create_job(
    request: Request,
    tenant: Tenant,
    body: Body,
    idempotency_key: Annotated[str, Header(max_length=200)] = "",
    tinkergym_packs: Annotated[str, Header(max_length=65_536)] = "",
) -> JobView:
    """Check a job in every way that does not need training, and queue it."""
    parts = parts_of(request)
    spec, sent = await aside(request, lambda: _read(body, parts.config.limits), body)
    client_packs = _read_packs(tinkergym_packs, spec)
    if isinstance(spec, PlayedSpec) and spec.rollout == "server" and parts.config.env_workers == 0:
        raise InvalidRequestError(
            "this service does not play episodes",
            hint="play them in your own process with rollout='client', or ask the operator to raise "
            "env_workers",
            field="rollout",
        )
    if isinstance(spec, WrittenDataSpec) and spec.evaluate and parts.config.env_workers == 0:
        raise InvalidRequestError(
            "this service does not play episodes, so it cannot evaluate the job",
            hint="leave out evaluate, or ask the operator to raise env_workers",
            field="evaluate",
        )
    # Before any check: if our response was lost, the client repeats the request, and what it names may be
    # gone or newer by now.
    earlier = await run_in_threadpool(tenant.job_of_request, idempotency_key, sent)
    shown = shown_to(request, tenant)
    if earlier is not None:
        return shown.job(earlier)
    # In its own threads: a check takes seconds, and many of them must not block all other routes.
    spec, packs = await to_thread.run_sync(
        _check, parts, tenant, spec, limiter=request.app.state.job_check_threads, abandon_on_cancel=True
    )
    # In a thread: it waits for the disk.
    stored = await run_in_threadpool(remote_environments.to_store, spec, parts.config, tenant.tenant_id)
    job = await run_in_threadpool(
        tenant.create_job,
        stored,
        packs,
        idempotency_key,
        request_sha256=sent,
        client_packs=client_packs,
    )
    return shown.job(job)


@router.get("")
def list_jobs(
    request: Request,
    tenant: Tenant,
    limit: Annotated[int, Query(ge=1, le=MOST_JOBS_LISTED)] = 50,
    before: str = "",
) -> JobList:
    """List jobs, newest first, starting after `before`."""
    shown = shown_to(request, tenant)
    return JobList(jobs=[shown.job(job) for job in tenant.list_jobs(limit, before)])


@router.get("/{job_id}")
def show_job(request: Request, tenant: Tenant, job_id: str) -> JobView:
    """Show one job."""
    return shown_to(request, tenant).job(tenant.get_job(job_id))


@router.post("/{job_id}/cancel")
def cancel_job(request: Request, tenant: Tenant, job_id: str) -> JobView:
    """Ask a job to end. A running one ends when its worker next checks; an ended one is unchanged."""
    return shown_to(request, tenant).job(tenant.request_cancel(job_id))


@router.delete("/{job_id}")
def delete_job(request: Request, tenant: Tenant, job_id: str) -> DeletedJob:
    """Delete an ended job with its checkpoints."""
    job_id = tenant.get_job(job_id).job_id  # Only a valid job id may name a folder.
    folders = JobFolders(parts_of(request).config.job_files)
    size = folders.size(job_id)
    with folders.deleting(job_id) as put_away:
        tenant.delete_job(job_id, put_away)
    return DeletedJob(job_id=job_id, bytes=size)


@router.get("/{job_id}/checkpoints")
def list_checkpoints(request: Request, tenant: Tenant, job_id: str) -> CheckpointList:
    """List the stored checkpoints."""
    shown = shown_to(request, tenant)
    return CheckpointList(checkpoints=[shown.checkpoint(view) for view in tenant.checkpoints(job_id)])


@router.get("/{job_id}/evaluations")
def list_evaluations(request: Request, tenant: Tenant, job_id: str) -> EvaluationList:
    """List the finished evaluations, in order."""
    return EvaluationList(evaluations=tenant.evaluations(job_id))


@router.get("/{job_id}/checkpoints/{step}/files/{name}", response_class=FileResponse)
def download_file(
    tenant: Tenant, job_id: str, step: int, name: str, agent: Annotated[str, Query(max_length=100)] = ""
) -> FileResponse:
    """Stream one file of a checkpoint; ranges are supported, so a download can be resumed."""
    for checkpoint in tenant.checkpoints(job_id, agent):
        # Only names listed by the checkpoint's writer: a path cannot be passed.
        if checkpoint.step == step and name in checkpoint.files:
            path = Path(checkpoint.path) / name
            if path.is_file():
                return FileResponse(path, media_type="application/octet-stream", filename=name)
    raise NotFoundError(
        f"job {job_id!r} has no file {name!r} at step {step}",
        hint="older checkpoints are removed; list the existing ones",
    )


def _check(parts: GatewayParts, tenant: TenantStore, spec: AnyJobSpec) -> tuple[AnyJobSpec, dict[str, str]]:
    """Return the job as it will be stored, and the versions of its packs."""
    require_offered(parts.config, tenant, spec.model)
    if isinstance(spec, DistillationSpec) and not PolicyRef.is_meant(spec.teacher):
        require_offered(parts.config, tenant, spec.teacher, field="teacher")
    several_models.refuse_impossible(spec, parts.config, tenant)
    seat_tools.refuse_foreign(spec)
    engine_bounds.refuse_impossible(spec, parts.config, parts.catalog)
    learner_bounds.refuse_impossible(spec, parts.config, parts.catalog)
    spec = origins.with_definite_origins(parts.catalog, tenant, spec)
    if isinstance(spec, PolicySpec):
        return spec, {}
    if isinstance(spec, WrittenDataSpec):
        datasets.check(parts.catalog, parts.config.uploads, parts.config.images, tenant, spec)
        remote_environments.check_evaluations(spec, parts.config)
        parts.job_check.check_evaluations(spec)
        return spec, {}
    found = parts.job_check.check(remote_environments.allowed(spec, parts.config))
    if spec.rollout == "server":
        spec = spec.model_copy(update={"environment_prompt": found.environment_prompt})
        spec = with_group_rewards(spec, pays_groups=found.group_rewards)
    if isinstance(spec, JobSpec):
        spec = _seated(spec, found.agents, found.offered)
    return spec, found.packs


def _seated(spec: JobSpec, agents: list[str], offered: list[str]) -> JobSpec:
    """Return a job with the seats of its game."""
    if spec.plays_game and spec.rollout == "server":
        return spec.seated(agents, offered)
    if spec.plays_game and not spec.agents:
        raise InvalidRequestError(
            "the service does not know the agents of a game that the client plays",
            hint="list them in agents: one with tg.Train, the others with tg.opponents.SharedWith",
            field="agents",
        )
    return spec


def _read(body: bytearray, limits: GatewayLimits) -> tuple[AnyJobSpec, str]:
    """Return the job in a body, and the hash of the body."""
    if len(body) > limits.job_bytes:  # Checked before any of its settings.
        raise _too_large(limits)
    settings = json_object(body)
    spec = remote_environments.by_id(parse_any_spec(settings))
    _check_size(spec, limits)
    return spec, _sha256(settings)


def _too_large(limits: GatewayLimits) -> PayloadTooLargeError:
    return PayloadTooLargeError(
        f"the job's description is larger than {limits.job_bytes} bytes",
        hint="pass the name of a dataset in environment.kwargs instead of its data",
    )


def _sha256(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _read_packs(header: str, spec: AnyJobSpec) -> list[InstalledPack]:
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
    return packs if isinstance(spec, PlayedSpec) and spec.rollout != "server" else []


def _check_size(spec: AnyJobSpec, limits: GatewayLimits) -> None:
    """Refuse jobs that would take memory or time from other tenants."""
    if len(spec.model_dump_json()) > limits.job_bytes:
        raise _too_large(limits)
    if isinstance(spec, WrittenDataSpec | PolicySpec):
        return
    most = spec.most_episodes_per_step if isinstance(spec, JobSpec) else spec.episodes_per_step
    if most > limits.episodes_per_step:
        field = "episodes_per_step"
        if isinstance(spec, JobSpec):
            rounds = spec.episodes_per_step <= limits.episodes_per_step
            field = f"algorithm.{'dynamic_sampling_rounds' if rounds else 'groups_per_step'}"
        raise InvalidRequestError(
            f"{most} episodes per step (in RL jobs group_size * groups_per_step, and as many for each of "
            f"dynamic_sampling_rounds) exceed the service's limit of {limits.episodes_per_step}",
            hint="use fewer, or ask the operator to raise limits.episodes_per_step",
            field=field,
        )
    if spec.deterministic and spec.rollout == "client" and spec.episodes_per_step > limits.samples_in_flight:
        # In lockstep nothing is answered before all requests have arrived, so the last ones would be refused
        # forever.
        raise InvalidRequestError(
            f"the {spec.episodes_per_step} episodes of a step of a deterministic job are sampled together, "
            f"but the service allows {limits.samples_in_flight} sampling requests of a tenant at a time",
            hint="use fewer episodes, let the service play them, or ask the operator to raise "
            "limits.samples_in_flight",
            field="deterministic",
        )
