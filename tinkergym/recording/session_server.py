"""SessionServer: the OpenAI API for the programs of one process, one URL and key per session and role.

The standard library's server, a thread per connection: a program's calls mostly wait for the engine. It
listens on this machine only.
"""

from __future__ import annotations

import hmac
import re
import socket
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from typing import Any

from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.agent.sampler import Sampler
from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.errors import AuthenticationError, InvalidRequestError, NotFoundError, TinkerGymError
from tinkergym.openai_api.api_errors import reply_to
from tinkergym.recording.program_replies import (
    ROUTES,
    ProgramReply,
    StreamedReply,
    begun,
    listed,
    rewarded,
)
from tinkergym.recording.recorded_session import RecordedSession, ended

_MOST_BODY_BYTES = 64 << 20
_POLL_SECONDS = 0.05
"""How long the end may take to notice."""
_PATH = re.compile(r"/(?P<name>[0-9a-f]+)/(?:(?P<reward>reward)|(?P<role>[^/]+)/v1/(?P<route>[a-z/]+))")


class SessionServer:
    """Opens sessions and serves their calls. The first session starts the thread that listens."""

    def __init__(self, *, strict: bool = False, base_url: str = "") -> None:
        """Prepare.

        Args:
            strict: Whether calls that cannot be trained on are refused.
            base_url: Where another server passes calls on; empty listens here.
        """
        self._strict, self._base_url = strict, base_url
        self._lock = threading.Lock()
        self._open: dict[str, RecordedSession] = {}
        self._ended: BoundedDict[str, str] = BoundedDict(10_000)
        """The keys of ended sessions, by name."""
        self._server: _Listener | None = None

    def open(
        self, plan: EpisodePlan, renderer: Callable[[str], Renderer], sampler: Sampler
    ) -> RecordedSession:
        """Open the session of an episode."""
        session = RecordedSession(
            plan, renderer, sampler, base_url=self._url(), strict=self._strict, on_end=self._forget
        )
        with self._lock:
            self._open[session.name] = session
        if (expect := getattr(sampler, "expect", None)) is not None:
            expect(self._likely_calls)
        return session

    def session(self, name: str, key: str) -> RecordedSession:
        """Return the session of this name.

        Raises:
            AuthenticationError: There is none, or the key is not its own.
            ConflictError: It has ended.
        """
        with self._lock:
            found = self._open.get(name)
            # An ended session keeps its key: its program hears that it has ended, not that the key is wrong.
            its = found.key if found is not None else self._ended.get(name, "")
        if not its or not hmac.compare_digest(its.encode(), key.encode()):
            raise AuthenticationError(
                "the key is not the one of this session", hint="use the session's key with the session's URL"
            )
        if found is None:
            raise ended()
        return found

    def close(self) -> None:
        """Stop listening."""
        with self._lock:
            server, self._server = self._server, None
        if server is not None:
            server.end()

    def _url(self) -> str:
        if self._base_url:
            return self._base_url
        with self._lock:
            if self._server is None:
                self._server = _Listener(self)
            return f"http://127.0.0.1:{self._server.server_address[1]}"

    def _likely_calls(self) -> int:
        with self._lock:
            return sum(session.may_call for session in self._open.values())

    def _forget(self, session: RecordedSession) -> None:
        with self._lock:
            self._open.pop(session.name, None)
            self._ended[session.name] = session.key


Reply = ProgramReply | StreamedReply


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    # Programs of many episodes begin together: beyond the usual 5, the kernel lets a connection wait a
    # second.
    request_queue_size = 1024

    def __init__(self, sessions: SessionServer) -> None:
        """Listen on a free port of this machine."""
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), type("Handler", (_Handler,), {"sessions": sessions}))
        threading.Thread(
            target=self.serve_forever, args=(_POLL_SECONDS,), name="tinkergym-sessions", daemon=True
        ).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection, and serve it in a thread."""
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection, and close it."""
        self._connections.discard(request)
        super().shutdown_request(request)

    def end(self) -> None:
        """Stop listening, and end all connections."""
        self.shutdown()
        self.server_close()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    sessions: SessionServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    """Head and body leave together: each send hands the interpreter over to another thread."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its own name
        """Log nothing: a path names a session."""

    def handle_expect_100(self) -> bool:
        """Let the client send its body now: curl waits a second otherwise."""
        goes_on = super().handle_expect_100()
        self.wfile.flush()
        return goes_on

    def do_GET(self) -> None:
        """Answer `GET models`."""
        self._answer(lambda session, path: listed(session, path["role"]), "models")

    def do_POST(self) -> None:
        """Answer a call, or take a reward."""
        self._answer(self._post)

    def _answer(self, answer: Callable[[RecordedSession, re.Match[str]], Reply], route: str = "") -> None:
        path = self.path.partition("?")[0]
        try:
            found = _PATH.fullmatch(path)
            if found is None or (route and found["route"] != route):
                raise NotFoundError(f"there is no {self.command} {path!r:.80}", hint=ROUTES)
            key = self.headers.get("authorization", "").removeprefix("Bearer ").strip()
            reply = answer(self.sessions.session(found["name"], key), found)
            if isinstance(reply, StreamedReply):
                chunks = reply.chunks(self._is_gone)
                first = next(chunks)
        except TinkerGymError as error:
            self.close_connection = True  # Its body may be unread.
            status, wrong = reply_to(error)
            self._send(status, wrong.model_dump_json().encode(), "application/json")
            return
        if isinstance(reply, StreamedReply):
            self._stream(chain([first], chunks), reply.media_type)
            return
        if reply.call is not None and not self._is_gone():
            # Before it is sent, as the program may end at once. Never taken back: a repeat may have got it.
            reply.call.is_delivered = True
        self._send(200, reply.body, reply.media_type)

    def _post(self, session: RecordedSession, path: re.Match[str]) -> Reply:
        if path["reward"]:
            return rewarded(session, self._body())
        repeats = self.headers.get("x-stainless-retry-count", "")
        reply = begun(session, path["role"], path["route"], self._body(), repeats=repeats)
        return reply if isinstance(reply, StreamedReply) else reply.wait()

    def _body(self) -> bytes:
        length = self.headers.get("content-length", "")
        if not (len(length) < 10 and length.isdecimal()) or int(length) > _MOST_BODY_BYTES:
            raise InvalidRequestError(
                "the request needs a content-length, of at most 64 MiB", field="content-length"
            )
        return self.rfile.read(int(length))

    def _is_gone(self) -> bool:
        """Whether the client has closed the connection."""
        try:
            return not self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _stream(self, chunks: Iterable[bytes], media_type: str) -> None:
        if self.request_version == "HTTP/1.0":  # It has no chunks.
            self._send(200, b"".join(chunks), media_type)
            return
        self.send_response(200)
        self.send_header("content-type", media_type)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for chunk in chunks:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _send(self, status: int, body: bytes, media_type: str) -> None:
        self.send_response(status)
        self.send_header("content-type", media_type)
        self.send_header("content-length", str(len(body)))
        if self.close_connection:
            self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
