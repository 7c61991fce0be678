"""`POST /openai/v1/completions`: texts and token ids, continued by a policy."""

from __future__ import annotations

import secrets
import time
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import StreamingResponse

from backend.gateway.dependencies import Tenant, body_of, describes
from backend.gateway.fair_threads import FairRoute, in_turn
from backend.openai_api.sampled import completions_of
from backend.openai_api.served_policies import ServedPolicy, with_policy
from backend.openai_api.sse import streamed
from tinkergym.openai_api.text_answer import TextChoices
from tinkergym.openai_api.text_request import TextRequest
from tinkergym.openai_api.token_requests import (
    Prompt,
    refuse_many_prompt_logprobs,
    text_prompts,
    token_requests,
)
from tinkergym.schema.sampling import SampleRequest

router = APIRouter(prefix="/openai/v1", route_class=FairRoute)


@router.post("/completions", openapi_extra=describes(TextRequest), response_class=StreamingResponse)
async def complete_text(
    request: Request, tenant: Tenant, wanted: Annotated[TextRequest, Depends(body_of(TextRequest))]
) -> Response:
    """Continue texts or token ids as they are: JSON, or server-sent events with `stream`."""

    def asked(served: ServedPolicy) -> tuple[list[Prompt], list[SampleRequest]]:
        prompts = text_prompts(served.renderer, wanted.prompts)
        refuse_many_prompt_logprobs(prompts, wanted, repeats=wanted.n)
        requests = token_requests(
            prompts,
            wanted,
            served.policy,
            longest=wanted.max_tokens,
            top_logprobs=wanted.logprobs or 0,
            structured=wanted.structured,
        )
        return prompts, requests

    prompts, requests = await with_policy(request, tenant, wanted.model, asked, wanted.caller)
    choices = TextChoices(prompts, wanted, f"cmpl-{secrets.token_hex(12)}", int(time.time()))
    if wanted.stream:
        return await streamed(request, tenant, requests, choices)
    found = await completions_of(request, tenant, requests)

    def body() -> str:
        return choices.whole(found).model_dump_json()

    return Response(await in_turn(tenant.tenant_id, body), media_type="application/json")
