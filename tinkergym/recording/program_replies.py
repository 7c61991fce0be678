"""A program's requests and the responses to them, for whatever server they arrive at."""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass

from tinkergym.basics.user_json import read_json
from tinkergym.errors import InvalidRequestError, NotFoundError
from tinkergym.openai_api.chat_answer import ServedModel, ServedModels
from tinkergym.openai_api.chat_choices import chat_choices
from tinkergym.openai_api.chat_request import ChatRequest
from tinkergym.openai_api.chat_stream import ChatStream
from tinkergym.openai_api.responses_answer import ResponsesReply
from tinkergym.openai_api.responses_request import ResponsesRequest
from tinkergym.openai_api.server_events import DONE, as_event, as_json
from tinkergym.recording.program_call import Call
from tinkergym.recording.recorded_session import RecordedSession
from tinkergym.schema.parsing import parse_json

ROUTES = "a session answers POST chat/completions, POST responses, GET models, and POST reward"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramReply:
    """A response, and the call that it answers."""

    body: bytes
    call: Call | None = None
    media_type: str = "application/json"


def answered(
    session: RecordedSession, role: str, route: str, body: bytes, *, repeats: str = ""
) -> ProgramReply:
    """Answer a call of a program. Blocks while its tokens are sampled.

    Args:
        session: The session.
        role: The role, from the URL.
        route: The rest of the URL.
        body: The request.
        repeats: The header `x-stainless-retry-count`, by which clients count repeats.

    Raises:
        NotFoundError: There is no such route or role.
        TinkerGymError: See `RecordedSession.ask`.
    """
    identity = hashlib.sha256(body).digest()
    retry = int(repeats) if len(repeats) < 4 and repeats.isdecimal() else 0
    if route == "chat/completions":
        chat = parse_json(ChatRequest, body)
        call = session.ask(role, chat, body=identity, retry=retry)
        return _chat_reply(chat, call)
    if route == "responses":
        wanted = parse_json(ResponsesRequest, body)
        chat = wanted.chat()
        call = session.ask(role, chat, body=identity, retry=retry)
        reply = ResponsesReply(call.prompt, wanted, chat, int(time.time()))
        (found,) = call.completions
        if wanted.stream:
            sent = b"".join(map(as_event, reply.end(0, found)))
            return ProgramReply(body=sent, call=call, media_type="text/event-stream")
        return ProgramReply(body=as_json(reply.whole(found)), call=call)
    raise NotFoundError(f"there is no POST {route!r:.80}", hint=ROUTES)


def listed(session: RecordedSession, role: str) -> ProgramReply:
    """Return the response to `GET models`: the role, as programs that look for a model expect."""
    model = ServedModel(id=role, created=0, owned_by="tinkergym", max_model_len=session.context_length(role))
    return ProgramReply(body=ServedModels(data=[model]).model_dump_json().encode())


def rewarded(session: RecordedSession, body: bytes) -> ProgramReply:
    """Take the reward that a program posts: a number, an object by role, or null to drop the episode.

    Raises:
        InvalidRequestError: It is neither, or not finite.
    """
    try:
        reward = read_json(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(
            f"the reward is not JSON: {error}",
            hint='send a number, or an object such as {"solver": 1.0}',
            field="reward",
        ) from None
    if isinstance(reward, dict) and reward.keys() == {"reward"}:
        reward = reward["reward"]
    session.post_reward(reward)
    return ProgramReply(body=b"{}")


def _chat_reply(wanted: ChatRequest, call: Call) -> ProgramReply:
    reply_id, created = f"chatcmpl-{secrets.token_hex(12)}", int(time.time())
    if not wanted.stream:
        reply = chat_choices(call.prompt, wanted, call.completions, reply_id, created)
        return ProgramReply(body=reply.model_dump_json().encode(), call=call)
    stream = ChatStream(call.prompt, wanted, reply_id, created)
    events = [event for index, one in enumerate(call.completions) for event in stream.end(index, one)]
    if wanted.wants_usage:
        events.append(stream.usage())
    sent = b"".join([*map(as_event, events), DONE])
    return ProgramReply(body=sent, call=call, media_type="text/event-stream")
