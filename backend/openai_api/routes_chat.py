"""`POST /openai/v1/chat/completions` and `/responses`: conversations, continued by a policy."""

from __future__ import annotations

import secrets
import time
from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import StreamingResponse

from backend.gateway.dependencies import Tenant, body_of, describes
from backend.gateway.fair_threads import FairRoute, in_turn
from backend.openai_api.image_intake import ImageReader
from backend.openai_api.sampled import completions_of
from backend.openai_api.served_policies import ServedPolicy, with_policy
from backend.openai_api.sse import streamed
from backend.store.store import TenantStore
from tinkergym.openai_api.chat_choices import chat_choices
from tinkergym.openai_api.chat_messages import ReadImage
from tinkergym.openai_api.chat_request import ChatRequest
from tinkergym.openai_api.chat_stream import ChatStream
from tinkergym.openai_api.responses_answer import ResponsesReply
from tinkergym.openai_api.responses_request import ResponsesRequest, in_their_names
from tinkergym.openai_api.server_events import as_json
from tinkergym.openai_api.token_requests import (
    Prompt,
    chat_prompt,
    refuse_many_prompt_logprobs,
    token_requests,
)
from tinkergym.schema.sampling import SampleRequest

router = APIRouter(prefix="/openai/v1", route_class=FairRoute)


@router.post("/chat/completions", openapi_extra=describes(ChatRequest), response_class=StreamingResponse)
async def complete_chat(
    request: Request,
    tenant: Tenant,
    read_image: ImageReader,
    wanted: Annotated[ChatRequest, Depends(body_of(ChatRequest))],
) -> Response:
    """Continue a conversation: JSON, or server-sent events with `stream`."""
    prompt, asked = await _asked(request, tenant, wanted, read_image)
    reply_id, created = f"chatcmpl-{secrets.token_hex(12)}", int(time.time())
    if wanted.stream:
        stream = ChatStream(prompt, wanted, reply_id, created)
        return await streamed(request, tenant, asked, stream)
    found = await completions_of(request, tenant, asked)

    def body() -> str:
        return chat_choices(prompt, wanted, found, reply_id, created).model_dump_json()

    return Response(await in_turn(tenant.tenant_id, body), media_type="application/json")


@router.post("/responses", openapi_extra=describes(ResponsesRequest), response_class=StreamingResponse)
async def respond(
    request: Request,
    tenant: Tenant,
    read_image: ImageReader,
    wanted: Annotated[ResponsesRequest, Depends(body_of(ResponsesRequest))],
) -> Response:
    """Continue a conversation that the request has whole: JSON, or server-sent events with `stream`."""
    chat = wanted.chat()
    with in_their_names():
        prompt, asked = await _asked(request, tenant, chat, read_image)
    reply = ResponsesReply(prompt, wanted, chat, int(time.time()))
    if wanted.stream:
        return await streamed(request, tenant, asked, reply)
    (found,) = await completions_of(request, tenant, asked)

    def body() -> bytes:
        return as_json(reply.whole(found))

    return Response(await in_turn(tenant.tenant_id, body), media_type="application/json")


async def _asked(
    request: Request, tenant: TenantStore, wanted: ChatRequest, read_image: ReadImage
) -> tuple[Prompt, list[SampleRequest]]:
    """Return the prompt of a conversation, and the requests for its completions."""

    def asked(served: ServedPolicy) -> tuple[Prompt, list[SampleRequest]]:
        prompt = chat_prompt(served.renderer, wanted, read_image)
        refuse_many_prompt_logprobs([prompt], wanted)
        requests = token_requests(
            [prompt],
            wanted,
            served.policy,
            longest=wanted.longest,
            top_logprobs=wanted.top_logprobs,
            structured=wanted.structured,
        )
        return prompt, requests

    return await with_policy(request, tenant, wanted.model, asked, wanted.caller)
