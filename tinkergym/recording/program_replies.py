"""A program's requests and the responses to them, for whatever server they arrive at."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tinkergym.basics.user_json import read_json
from tinkergym.errors import InvalidRequestError, NotFoundError, TinkerGymError
from tinkergym.images.stored_images import image_file
from tinkergym.openai_api.api_errors import reply_to
from tinkergym.openai_api.chat_answer import ServedModel, ServedModels
from tinkergym.openai_api.chat_choices import chat_choices
from tinkergym.openai_api.chat_messages import ReadImage
from tinkergym.openai_api.chat_request import ChatRequest
from tinkergym.openai_api.chat_stream import ChatStream
from tinkergym.openai_api.responses_answer import ResponsesReply
from tinkergym.openai_api.responses_request import ResponsesRequest, in_their_names
from tinkergym.openai_api.server_events import (
    SILENT_SECONDS,
    STILL_SAMPLING,
    Events,
    as_event,
    as_events,
    as_json,
)
from tinkergym.recording.program_call import Call
from tinkergym.recording.recorded_session import RecordedSession
from tinkergym.schema.parsing import parse_json
from tinkergym.schema.sampling import Completion

ROUTES = "a session answers POST chat/completions, POST responses, GET models, and POST reward"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramReply:
    """A response, and the call that it answers."""

    body: bytes
    call: Call | None = None
    media_type: str = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedReply:
    """A response that is made once its call is answered."""

    call: Call
    made: Callable[[list[Completion]], bytes]

    def wait(self) -> ProgramReply:
        """Return the response. Blocks while its tokens are sampled.

        Raises:
            TinkerGymError: See `Call.wait`.
        """
        return ProgramReply(body=self.made(self.call.wait()), call=self.call)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedReply:
    """A response that is made while its call is answered."""

    call: Call
    events: Events
    media_type: str = "text/event-stream"

    def chunks(self, is_gone: Callable[[], bool]) -> Iterator[bytes]:
        """Yield what is sent, as it arrives. With the last chunk, the program has the answer.

        Args:
            is_gone: Returns whether the program has hung up.

        Raises:
            TinkerGymError: Sampling failed before the first chunk; later, the last chunk says so.
        """
        places = {one.request_id: place for place, one in enumerate(self.call.requests)}
        has_begun = False
        try:
            for part in self.call.arriving(SILENT_SECONDS):
                sent = STILL_SAMPLING
                if part is not None:
                    sent = as_events(self.events.part(places[part.request_id], part))
                if sent:
                    yield sent
                    has_begun = True
            found = self.call.wait()
        except TinkerGymError as error:
            if not has_begun:
                raise
            yield as_event(reply_to(error)[1])
            return
        last = b"".join([as_events(self.events.end(place, one)) for place, one in enumerate(found)])
        if not is_gone():
            # Before it is sent, as the program may end at once. Never taken back: a repeat may have got it.
            self.call.is_delivered = True
        yield last + self.events.closing()


def begun(
    session: RecordedSession,
    role: str,
    route: str,
    body: bytes,
    *,
    repeats: str = "",
    read_image: ReadImage = image_file,
) -> AwaitedReply | StreamedReply:
    """Begin to answer a call of a program: its prompt is rendered and its tokens are asked for.

    Args:
        session: The session.
        role: The role, from the URL.
        route: The rest of the URL.
        body: The request.
        repeats: The header `x-stainless-retry-count`, by which clients count repeats.
        read_image: Checks images of the call.

    Raises:
        NotFoundError: There is no such route or role.
        TinkerGymError: See `RecordedSession.ask`.
    """
    identity = hashlib.sha256(body).digest()
    retry = int(repeats) if len(repeats) < 4 and repeats.isdecimal() else 0
    if route == "chat/completions":
        chat = parse_json(ChatRequest, body)
        call = session.ask(role, chat, body=identity, retry=retry, read_image=read_image)
        return _chat_reply(chat, call)
    if route == "responses":
        wanted = parse_json(ResponsesRequest, body)
        chat = wanted.chat()
        with in_their_names():
            call = session.ask(role, chat, body=identity, retry=retry, read_image=read_image)
        reply = ResponsesReply(call.prompt, wanted, chat, int(time.time()))
        if wanted.stream:
            return StreamedReply(call=call, events=reply)
        return AwaitedReply(call=call, made=lambda found: as_json(reply.whole(*found)))
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


def _chat_reply(wanted: ChatRequest, call: Call) -> AwaitedReply | StreamedReply:
    reply_id, created = f"chatcmpl-{secrets.token_hex(12)}", int(time.time())
    if wanted.stream:
        stream = ChatStream(call.prompt, wanted, reply_id, created)
        return StreamedReply(call=call, events=stream)

    def made(found: list[Completion]) -> bytes:
        return chat_choices(call.prompt, wanted, found, reply_id, created).model_dump_json().encode()

    return AwaitedReply(call=call, made=made)
