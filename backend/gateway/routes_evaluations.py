"""Evaluations and branches in environments that are installed with the service."""

from __future__ import annotations

from contextlib import AsyncExitStack
from math import inf
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import StreamingResponse

from backend.evaluations.service_evaluations import CrossPlayOfJob, Playable, ServiceEvaluations, StoredBranch
from backend.external.urls import is_remote
from backend.gateway.dependencies import Tenant, body_of, describes, key_of, own_url
from backend.gateway.fair_threads import FairRoute, in_turn
from backend.gateway.wiring import parts_of
from backend.lines_response import LinesResponse
from backend.store.store import TenantStore
from tinkergym.errors import ConflictError, InvalidRequestError, NotReplayableError
from tinkergym.schema.evaluation import BranchRequest, CrossPlayRequest, EvaluationRequest
from tinkergym.schema.names import LOCAL

router = APIRouter(prefix="/v1", route_class=FairRoute)


@router.post("/evaluations", openapi_extra=describes(EvaluationRequest), response_class=StreamingResponse)
async def evaluate(
    request: Request,
    tenant: Tenant,
    wanted: Annotated[EvaluationRequest, Depends(body_of(EvaluationRequest))],
) -> LinesResponse:
    """Play episodes of a policy: one JSON line for each finished one; an empty line means: still playing."""
    if is_remote(wanted.environment):
        raise InvalidRequestError(
            "the service does not evaluate an environment on a server, because the client has its token",
            hint="play the episodes in your own process",
            field="environment",
        )
    return _played(request, tenant, wanted)


@router.post(
    "/jobs/{job_id}/episodes/{episode_id}/branch",
    openapi_extra=describes(BranchRequest),
    response_class=StreamingResponse,
)
async def branch(
    request: Request,
    tenant: Tenant,
    job_id: str,
    episode_id: str,
    wanted: Annotated[BranchRequest, Depends(body_of(BranchRequest))],
) -> LinesResponse:
    """Continue a stored episode from one of its turns: a JSON line for each continuation, as it ends."""
    await _require_played_here(
        tenant,
        job_id,
        f"run `tinkergym branch {episode_id} --turn {wanted.turn}` there, with --env for your own class, or "
        "job.branch(...) in the script",
    )
    return _played(request, tenant, StoredBranch(job_id=job_id, episode_id=episode_id, **dict(wanted)))


@router.post(
    "/jobs/{job_id}/crossplay", openapi_extra=describes(CrossPlayRequest), response_class=StreamingResponse
)
async def crossplay(
    request: Request,
    tenant: Tenant,
    job_id: str,
    wanted: Annotated[CrossPlayRequest, Depends(body_of(CrossPlayRequest))],
) -> LinesResponse:
    """Let versions of a job's policies play each other: empty lines, then the figures as one JSON line."""
    await _require_played_here(tenant, job_id, "run job.crossplay(...) in the script")
    return _played(request, tenant, CrossPlayOfJob(job_id=job_id, **dict(wanted)))


async def _require_played_here(tenant: TenantStore, job_id: str, hint: str) -> None:
    """Refuse what must be played at the client, as the job's own episodes are."""
    spec = (await in_turn(tenant.tenant_id, tenant.get_job, job_id)).spec.played
    if spec is None:
        raise ConflictError(f"{job_id} plays no episodes")
    own = spec.own_environments.values()
    if spec.rollout != "server" or any(is_remote(one) or one.id.startswith(LOCAL) for one in own):
        raise NotReplayableError(
            f"the episodes of {job_id} are played at the client", hint=hint, field="environment"
        )


def _played(request: Request, tenant: TenantStore, wanted: Playable) -> LinesResponse:
    """Return the lines of a process that plays."""
    if parts_of(request).config.env_workers == 0:
        raise InvalidRequestError(
            "this service does not play episodes",
            hint="install the pack on your machine, or ask the operator to raise env_workers",
            field="environment",
        )
    evaluations: ServiceEvaluations = request.app.state.evaluations
    held = AsyncExitStack()
    # Here and not when the response starts: otherwise concurrent requests would each find a free place.
    held.enter_context(evaluations.entered(tenant.tenant_id))
    lines = evaluations.lines(tenant.tenant_id, wanted, own_url(request), key_of(request))
    return LinesResponse(lines, inf, held)
