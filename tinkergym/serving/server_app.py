"""The environment server's application: authentication, and the messages on a connection."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI, WebSocket
from fastapi.responses import JSONResponse
from starlette.websockets import WebSocketDisconnect

from tinkergym.errors import (
    AuthenticationError,
    EnvironmentBusyError,
    InvalidRequestError,
    TinkerGymError,
    VersionMismatchError,
)
from tinkergym.serving.making import check_render_mode
from tinkergym.serving.named_blobs import named
from tinkergym.serving.server_settings import ServerSettings
from tinkergym.serving.session import Session
from tinkergym.serving.sessions import Sessions
from tinkergym.serving.wire_protocol import (
    CALLS,
    PATH,
    VERSION,
    Frame,
    Message,
    decode,
    encode,
    error_message,
)

_SWEEP_SECONDS = 0.2
_CLOSE_SECONDS = 5.0
_GOING_AWAY = 1001
_BAD_MESSAGE = 1008
_LARGE_FRAME = 64 * 1024
"""Parsing larger messages takes up to seconds, during which the event loop would not serve other clients."""


def create_app(settings: ServerSettings, description: Message) -> FastAPI:
    """Build the application.

    Args:
        settings: The server's settings.
        description: The response to `about`; see `making.description_of`.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.sessions = sessions = Sessions(settings, time.monotonic)
        app.state.connections = 0
        sweeper = asyncio.create_task(_sweep(sessions))
        yield
        sweeper.cancel()
        await sessions.close_all(_CLOSE_SECONDS)

    app = FastAPI(
        title="tinkergym environment", openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    about = {
        "version": VERSION,
        "environment": description,
        "capacity": settings.capacity,
        "idle_timeout_seconds": settings.idle_timeout_seconds,
        "step_timeout_seconds": settings.step_timeout_seconds,
        "max_message_bytes": settings.max_message_bytes,
    }

    @app.get("/v1/health")
    async def health() -> dict[str, object]:
        """Report that the server is alive, for monitoring; reveals nothing about the environment."""
        return {"status": "ok"}

    @app.websocket(PATH)
    async def session(websocket: WebSocket) -> None:
        refusal = _refusal(websocket, settings)
        if refusal is not None:
            body = error_message(refusal)
            await websocket.send_denial_response(JSONResponse(body, status_code=refusal.http_status))
            return
        websocket.app.state.connections += 1
        try:
            await websocket.accept()
            await _Conversation(websocket, websocket.app.state.sessions, settings, about).run()
        finally:
            websocket.app.state.connections -= 1

    return app


async def _sweep(sessions: Sessions) -> None:
    while True:
        await asyncio.sleep(_SWEEP_SECONDS)
        sessions.sweep()


def _refusal(websocket: WebSocket, settings: ServerSettings) -> TinkerGymError | None:
    shown = websocket.headers.get("authorization", "")
    # Constant time, and over bytes: a header may contain non-ASCII characters.
    if not hmac.compare_digest(shown.encode(), f"Bearer {settings.token}".encode()):
        return AuthenticationError(
            "the environment server's token is missing or wrong"
            if shown
            else "this environment server requires a token",
            hint="pass the server's token as token=..., or set TINKERGYM_ENV_TOKEN",
            field="token",
        )
    if websocket.app.state.connections >= settings.most_connections:
        return EnvironmentBusyError(
            "too many connections to this environment server", hint="try again in a moment"
        )
    return None


class _Conversation:
    """The messages on one connection."""

    def __init__(
        self, websocket: WebSocket, sessions: Sessions, settings: ServerSettings, about: Message
    ) -> None:
        self._websocket = websocket
        self._sessions = sessions
        self._settings = settings
        self._about = about
        self._session: Session | None = None
        self._by_hash = False
        """Whether the client accepts hashes for bytes that it was sent before."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        try:
            while True:
                frame = await self._receive()
                answer = await self._answer(frame)
                await self._send(answer)
        except (WebSocketDisconnect, TimeoutError):
            pass
        except InvalidRequestError as error:
            # A client that sends an invalid message will not understand the next response either.
            await self._hang_up(error, _BAD_MESSAGE)
        finally:
            if self._session is not None and self._session.on_end == self._session_ended:
                self._session.on_end, self._session.lost_at = None, time.monotonic()

    async def _receive(self) -> Frame:
        if self._session is None:
            async with asyncio.timeout(self._settings.open_timeout_seconds):
                event = await self._websocket.receive()
        else:
            event = await self._websocket.receive()
        if event["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(event.get("code", 1005))
        text: str | None = event.get("text")
        return text if text is not None else event["bytes"]

    async def _send(self, frame: Frame) -> None:
        # A client that disconnected may have sent something before, such as `close`; it is still read.
        with suppress(WebSocketDisconnect, RuntimeError):
            if isinstance(frame, str):
                await self._websocket.send_text(frame)
            else:
                await self._websocket.send_bytes(frame)

    async def _answer(self, frame: Frame) -> Frame:
        message = decode(frame) if len(frame) < _LARGE_FRAME else await asyncio.to_thread(decode, frame)
        op = message.get("op")
        try:
            if isinstance(op, str) and op in CALLS:
                if self._session is None:
                    raise InvalidRequestError(f"{op} needs a session", hint="send open first")
                return await self._shown(
                    self._session, await self._session.call(message, frame, time.monotonic())
                )
            if op == "open":
                return encode(self._open(message))
            if op == "about":
                _check_version(message)
                return encode(self._about)
            if op == "blobs":
                return encode({"blobs": self._wanted(message.get("hashes"))})
            if op == "close":
                return encode(await self._close())
            raise InvalidRequestError(f"there is no op {op!r}", hint="see tinkergym/serving/wire_protocol.py")
        except TinkerGymError as error:
            return encode(error_message(error))

    async def _shown(self, session: Session, frame: Frame) -> Frame:
        """Return a call's response with hashes instead of bytes sent before, if the client supports it."""
        if not self._by_hash:
            return frame
        if len(frame) < _LARGE_FRAME:
            frame, session.shown = named(frame, self._sessions.sent)
        else:
            frame, session.shown = await asyncio.to_thread(named, frame, self._sessions.sent)
        return frame

    def _wanted(self, hashes: object) -> list[bytes]:
        shown = self._session.shown if self._session is not None else {}
        if not isinstance(hashes, list) or not all(isinstance(one, str) and one in shown for one in hashes):
            raise InvalidRequestError("blobs asks for bytes that the last answer does not show")
        return [bytes(shown[one]) for one in dict.fromkeys(hashes)]

    def _open(self, message: Message) -> Message:
        _check_version(message)
        self._by_hash = message.get("by_hash") is True
        mode = check_render_mode(message.get("render_mode"), self._about["environment"])
        resume = message.get("resume") is True
        session = self._sessions.open(message.get("session"), resume=resume, render_mode=mode)
        if session.on_end is not None and session.on_end != self._session_ended:
            # An earlier connection of the same client, which has not noticed its loss yet.
            session.on_end(InvalidRequestError("another connection resumed this session"))
        session.on_end = self._session_ended
        self._session = session
        limits = ("step_timeout_seconds", "max_message_bytes", "idle_timeout_seconds")
        return {"session": session.session_id, **{name: self._about[name] for name in limits}}

    async def _close(self) -> Message:
        session, self._session = self._session, None
        if session is not None:
            session.on_end = None
            await self._sessions.close(session)
        return {"closed": True}

    def _session_ended(self, reason: TinkerGymError) -> None:
        """Report that the server ended the session, or that another connection resumed it, and disconnect."""
        self._session = None
        task = asyncio.get_running_loop().create_task(self._hang_up(reason, _GOING_AWAY))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hang_up(self, reason: TinkerGymError, code: int) -> None:
        await self._send(encode(error_message(reason)))
        with suppress(WebSocketDisconnect, RuntimeError):
            await self._websocket.close(code)


def _check_version(message: Message) -> None:
    theirs = message.get("version")
    if theirs != VERSION:
        raise VersionMismatchError(
            f"the client uses version {theirs!r} of the environment protocol, but the server uses version "
            f"{VERSION}",
            hint="install the same release of tinkergym on both sides",
        )
