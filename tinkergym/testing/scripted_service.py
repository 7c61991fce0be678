"""A service without a model, over real HTTP on this machine: for tests of clients and training scripts.

Jobs do not learn, and a function returns the policy's completions. Everything else is as in the real service.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from tinkergym.agent.renderer import Renderer
from tinkergym.errors import (
    AuthenticationError,
    NotFoundError,
    ServiceUnavailableError,
    TinkerGymError,
    TooManyRequestsError,
    UnknownModelError,
)
from tinkergym.schema.data import DataChunk, DataManifest, DataView
from tinkergym.schema.episodes import LeaseRequest, SubmitRequest
from tinkergym.schema.events import EvaluationEvent, JobState
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.view import CLIENT_PACKS_HEADER, INSTALLED_PACKS, JobView
from tinkergym.schema.parsing import parse_spec
from tinkergym.schema.sampling import SampleBatch, SampleRequest
from tinkergym.schema.updates import UpdateRequest
from tinkergym.schema.version import __version__
from tinkergym.schema.views import (
    EnvironmentView,
    HealthView,
    ModelView,
    PolicyView,
    RendererBundle,
    WantedRenderer,
)
from tinkergym.testing.bundles import byte_bundle
from tinkergym.testing.samplers import ScriptedSampler
from tinkergym.testing.scripted_jobs import ScriptedJobs

API_KEY = "tg-scripted"
MODELS = ("nano", "nano-instruct")
_CLOSING_SECONDS = 10.0


class ScriptedService:
    """Serves the gateway's routes.

    Example:
        >>> with ScriptedService(lambda prompt: "b2") as service:
        ...     client = tinkergym.Client(service.url, service.api_key)
    """

    def __init__(
        self,
        answer: Callable[[str], str] = lambda prompt: "ok",
        *,
        environments: Sequence[str] = (),
        context_length: int = 1024,
    ) -> None:
        """Start to listen on a free port of the loopback.

        Args:
            answer: A function from the whole conversation, as the template renders it, to the policy's text.
            environments: Ids of the service's environments; jobs that play them there are done at once.
            context_length: The model's context; its tokens are bytes.
        """
        self.api_key = API_KEY
        self.jobs = ScriptedJobs(environments)
        self.bundle = byte_bundle(context_length=context_length)
        self.files: dict[str, bytes] = {}
        """Of every checkpoint."""
        self.sampled: list[list[SampleRequest]] = []
        """Every requested batch."""
        self.chunks: dict[str, bytes] = {}
        """Of written data, by hash."""
        self.calls: list[str] = []
        """`METHOD path` of every request."""
        self._sampler = ScriptedSampler(Renderer.from_bundle(self.bundle), answer)
        self._faults: list[tuple[str, Callable[[Any], None]]] = []
        self._lock = threading.Lock()
        self.closing = threading.Event()

        class Bound(_Handler):
            service = self

        self._server = _Server(("127.0.0.1", 0), Bound)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, and end open connections and the threads that serve them."""
        self.closing.set()
        with self.jobs.changed:
            self.jobs.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._server.end_connections()

    def break_next(self, call: str, *, status: int | None = None) -> None:
        """Let the next request whose `METHOD path` contains `call` fail.

        Args:
            call: Part of `METHOD path`; `EVENT job-1` ends that job's event stream between two events.
            status: The status of the response, in our error format; 429 and 503 can be retried, others
                cannot. None drops the connection without a response.
        """
        kinds = {kind.http_status: kind for kind in (ServiceUnavailableError, TooManyRequestsError)}
        error = kinds.get(status or 0, TinkerGymError)("broken on purpose")

        def fail(handler: Any) -> None:
            if status is None:
                handler.close_connection = True
                handler.connection.close()
            else:
                handler.reply(status, {"error": error.to_wire()})

        with self._lock:
            self._faults.append((call, fail))

    def sample(self, requests: list[SampleRequest]) -> list[bytes]:
        """Answer a batch, one JSON line per request."""
        self.sampled.append(requests)
        lines: list[bytes] = []
        self._sampler.submit(
            requests, lambda done: lines.extend(answer.model_dump_json().encode() + b"\n" for answer in done)
        )
        return lines

    def fault(self, call: str) -> Callable[[Any], None] | None:
        """Take the fault prepared for this call, if any."""
        with self._lock:
            for index, (part, fail) in enumerate(self._faults):
                if part in call:
                    del self._faults[index]
                    return fail
        return None


class _Server(ThreadingHTTPServer):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._served: dict[threading.Thread, socket.socket] = {}
        """The open connections, each by its thread."""

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._served[threading.current_thread()] = request
        super().process_request_thread(request, client_address)
        del self._served[threading.current_thread()]

    def end_connections(self) -> None:
        """Close open connections, which a client keeps for its next request, and wait for their threads."""
        for thread, connection in list(self._served.items()):
            with contextlib.suppress(OSError):  # closed meanwhile
                connection.shutdown(socket.SHUT_RDWR)
            thread.join(_CLOSING_SECONDS)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log errors, except that a client disconnected: programs end while they listen to events."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Header and body go out in two writes; without this each response waits 40 ms for an acknowledgement.
    disable_nagle_algorithm = True
    service: ScriptedService

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_PUT(self) -> None:
        self._answer("PUT")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Print nothing."""

    def reply(self, status: int, payload: Any) -> None:
        self._reply_bytes(status, json.dumps(payload).encode(), "application/json")

    def _reply_bytes(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer(self, method: str) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        if len(body) < length:
            # The client disconnected while sending, like a rollout worker that is stopped during a call.
            self.close_connection = True
            return
        self.service.calls.append(f"{method} {parts.path}")
        fail = self.service.fault(f"{method} {parts.path}")
        if fail is not None:
            fail(self)
            return
        try:
            if parts.path != "/v1/health" and self.headers.get("Authorization") != f"Bearer {API_KEY}":
                raise AuthenticationError("the API key is unknown", hint="set TINKERGYM_API_KEY")
            self._route(method, parts.path, parse_qs(parts.query), body)
        except TinkerGymError as error:
            self.reply(error.http_status, {"error": error.to_wire()})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _route(self, method: str, path: str, query: dict[str, list[str]], body: bytes) -> None:
        service, jobs = self.service, self.service.jobs
        job_route = re.fullmatch(r"/v1/jobs/([^/]+)(/.*)?", path)
        if path == "/v1/health":
            self._view(
                HealthView(status="ok", version=__version__, memory=dict.fromkeys(MODELS, 600_000_000))
            )
        elif path == "/v1/models":
            views = [ModelView(name=name, context_length=1024).model_dump() for name in MODELS]
            self.reply(200, {"models": views})
        elif path == "/v1/environments":
            there = [EnvironmentView(id=name, distribution="scripted", version="0") for name in jobs.known]
            self.reply(200, {"environments": [view.model_dump() for view in there]})
        elif path == "/v1/renderer":
            self._view(_renderer(service, body if method == "POST" else b"", query.get("model", [""])[0]))
        elif path == "/v1/sample":
            batch = SampleBatch.model_validate_json(body)
            self._reply_bytes(200, b"".join(service.sample(batch.requests)), "application/x-ndjson")
        elif path == "/v1/jobs" and method == "POST":
            key = self.headers.get("Idempotency-Key", "")
            packs = INSTALLED_PACKS.validate_json(self.headers.get(CLIENT_PACKS_HEADER, "[]"))
            self._view(jobs.create(parse_spec(json.loads(body)), key, client_packs=packs), status=201)
        elif path == "/v1/policies":
            self._view(_policy_view(jobs, query["reference"][0]))
        elif path.startswith("/v1/data"):
            self._route_data(path, body)
        elif path == "/v1/jobs":
            limit, before = (query.get(key, [usual])[0] for key, usual in (("limit", "50"), ("before", "")))
            views = [view.model_dump(mode="json") for view in jobs.newest_first()]
            newer = [view["job_id"] for view in views].index(before) + 1 if before else 0
            self.reply(200, {"jobs": views[newer:][: int(limit)]})
        elif job_route:
            self._route_job(method, job_route[1], job_route[2] or "", body)
        else:
            raise NotFoundError(f"there is no route {path}")

    def _route_data(self, path: str, body: bytes) -> None:
        chunks = self.service.chunks
        if path == "/v1/data":
            manifest = DataManifest.model_validate_json(body)
            missing = [name for name in manifest.chunks if name not in chunks]
            self._view(DataView(data_id=manifest.data_id, kind=manifest.kind, missing=missing))
        else:
            DataChunk.model_validate_json(body)
            chunks[path.rpartition("/")[2]] = body
            self.reply(200, {})

    def _route_job(self, method: str, job_id: str, rest: str, body: bytes) -> None:
        jobs = self.service.jobs
        job = jobs.get(job_id)
        file = re.fullmatch(r"/checkpoints/\d+/files/(.+)", rest)
        if rest == "" and method == "DELETE":
            self._view(jobs.delete(job_id))
        elif rest == "":
            self._view(job.view)
        elif rest in ("/cancel", "/pause", "/resume", "/update"):
            self._view(_acted_on(jobs, job_id, rest, body))
        elif rest == "/events":
            self._stream_events(job_id)
        elif rest == "/episodes/lease":
            self._view(jobs.lease(job_id, LeaseRequest.model_validate_json(body)))
        elif rest == "/episodes/submit":
            self._view(jobs.submit(job_id, SubmitRequest.model_validate_json(body).results))
        elif rest == "/evaluations":
            done = [event.body for event in job.events if isinstance(event.body, EvaluationEvent)]
            self.reply(200, {"evaluations": [one.model_dump() for one in done]})
        elif rest == "/checkpoints":
            self.reply(200, {"checkpoints": [view.model_dump() for view in job.checkpoints]})
        elif file and file[1] in self.service.files:
            self._reply_bytes(200, self.service.files[file[1]], "application/octet-stream")
        else:
            raise NotFoundError(f"there is no route {rest}")

    def _view(self, view: Any, status: int = 200) -> None:
        self.reply(status, view.model_dump(mode="json"))

    def _stream_events(self, job_id: str) -> None:
        job, jobs = self.service.jobs.get(job_id), self.service.jobs
        sent = int(self.headers.get("Last-Event-ID") or 0)
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        while not self.service.closing.is_set():
            with jobs.changed:
                if len(job.events) == sent and not self.service.closing.is_set():
                    jobs.changed.wait(timeout=0.2)
                news, over = job.events[sent:], job.view.state.final
            if self.service.fault(f"EVENT {job_id}") is not None:
                return
            self.wfile.write(b": still here\n\n")
            for event in news:
                line = f"id: {event.seq}\nevent: {event.body.type}\ndata: {event.model_dump_json()}\n\n"
                self.wfile.write(line.encode())
                sent = event.seq
            self.wfile.flush()
            if over and sent == len(job.events):
                return


def _acted_on(jobs: ScriptedJobs, job_id: str, action: str, body: bytes) -> JobView:
    """Apply an owner's action to a job."""
    match action:
        case "/cancel":
            return jobs.end(job_id, JobState.CANCELLED, reason="cancelled by its owner")
        case "/pause":
            return jobs.pause(job_id)
        case "/resume":
            return jobs.resume(job_id)
        case _:
            return jobs.change_settings(job_id, UpdateRequest.model_validate_json(body).settings)


def _policy_view(jobs: ScriptedJobs, reference: str) -> PolicyView:
    """Resolve a reference to its version; nothing is trained here, so every version is stored."""
    ref = PolicyRef.parse(reference, field="reference")
    view = jobs.get(ref.owner).view
    newest = view.policy_version
    named = {"latest": newest, "best": newest}.get(ref.name, ref.step if ref.version is None else ref.version)
    return PolicyView(
        policy_id=ref.owner,
        job_id=ref.owner,
        agent=ref.agent,
        model=view.spec.model,
        version=None if ref.is_newest else named,
        kept=list(range(1, newest + 1)),
    )


def _renderer(service: ScriptedService, body: bytes, model: str) -> RendererBundle:
    """Return what a body, or the name of a model or a job, refers to."""
    template = ""
    if body:
        wanted = WantedRenderer.model_validate_json(body)
        model, template = wanted.model, wanted.chat_template
    elif model.startswith("job-"):
        spec = service.jobs.get(model).view.spec
        model, template = spec.model, spec.chat_template
    if model not in MODELS and not Path(model).is_absolute():
        raise UnknownModelError(
            f"unknown model {model!r}", hint=f"available: {', '.join(MODELS)}", field="model"
        )
    own = {"chat_template": template} if template else {}
    return service.bundle.model_copy(update={"model": model, **own})
