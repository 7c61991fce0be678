"""Evaluations in environments that are installed with the service, for clients that lack them."""

from __future__ import annotations

from contextlib import AsyncExitStack
from math import inf
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import StreamingResponse

from backend.evaluations.playing import Evaluations
from backend.external.urls import is_remote
from backend.gateway.dependencies import Tenant, body_of, describes, key_of
from backend.gateway.fair_routes import FairRoute
from backend.gateway.wiring import parts_of
from backend.lines_response import LinesResponse
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.evaluation import EvaluationRequest

router = APIRouter(prefix="/v1", route_class=FairRoute)


@router.post("/evaluations", openapi_extra=describes(EvaluationRequest), response_class=StreamingResponse)
async def evaluate(
    request: Request,
    tenant: Tenant,
    wanted: Annotated[EvaluationRequest, Depends(body_of(EvaluationRequest))],
) -> LinesResponse:
    """Play episodes of a policy: one JSON line for each finished one; an empty line means: still playing."""
    parts = parts_of(request)
    if is_remote(wanted.environment):
        raise InvalidRequestError(
            "the service does not evaluate an environment on a server, because the client has its token",
            hint="play the episodes in your own process",
            field="environment",
        )
    if parts.config.env_workers == 0:
        raise InvalidRequestError(
            "this service does not play episodes",
            hint="install the pack on your machine, or ask the operator to raise env_workers",
            field="environment",
        )
    evaluations: Evaluations = request.app.state.evaluations
    # Its own address for the playing process, which samples like any client.
    host, port = request.scope["server"]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    held = AsyncExitStack()
    # Here and not when the response starts: otherwise concurrent requests would each find a free place.
    held.enter_context(evaluations.entered(tenant.tenant_id))
    lines = evaluations.lines(tenant.tenant_id, wanted, url, key_of(request))
    return LinesResponse(lines, inf, held)
