"""Sampling: each request goes to the pool of its model, and the responses come back interleaved.

The gateway checks who owns the policies and never parses a completion.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import StreamingResponse

from backend.gateway.dependencies import Tenant, body_of, describes
from backend.gateway.fair_threads import FairRoute
from backend.gateway.sample_dispatch import begin_sampling
from backend.lines_response import LinesResponse
from tinkergym.schema.sampling import SampleBatch

router = APIRouter(prefix="/v1", route_class=FairRoute)


@router.post("/sample", openapi_extra=describes(SampleBatch), response_class=StreamingResponse)
async def sample(
    request: Request, tenant: Tenant, batch: Annotated[SampleBatch, Depends(body_of(SampleBatch))]
) -> LinesResponse:
    """Sample tokens: one JSON line per request, in order of completion."""
    sampling = await begin_sampling(request, tenant, batch.requests, together=batch.together)
    return LinesResponse(sampling.lines, sampling.count, sampling.held)
