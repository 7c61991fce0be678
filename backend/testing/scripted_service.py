"""A service without a model on this machine: for tests of clients and training scripts.

It is the gateway's own application on a store of its own; only the pool is scripted: jobs do not learn, and a
function returns the policy's completions.
"""

from __future__ import annotations

import asyncio
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from copy import copy
from functools import partial
from itertools import count
from pathlib import Path
from typing import Self

import uvicorn
from anyio import to_thread
from fastapi import FastAPI
from starlette.datastructures import State
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from backend.config import ServiceConfig
from backend.gateway.app import create_app
from backend.gateway.event_tail import EventTail
from backend.gateway.wiring import GatewayParts
from backend.store.key_rows import LOCAL_TENANT
from backend.store.store import Store
from backend.store.tenant import TenantStore
from backend.testing.scripted_catalog import MODELS, ScriptedCatalog, ScriptedCheck
from backend.testing.scripted_jobs import POOL, ScriptedJobs
from backend.testing.scripted_pool import ScriptedPool
from tinkergym.errors import ServiceUnavailableError, TinkerGymError, TooManyRequestsError
from tinkergym.testing.bundles import byte_bundle

_POLL_SECONDS = 0.01
_FOREVER = 1e12
_MODEL_BYTES = 600_000_000


class ScriptedService:
    """Serves the gateway's routes. Ids of jobs count up: `job-1`, `job-2`.

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
            environments: Ids of the service's environments; jobs that play them there are done immediately.
            context_length: The model's context; its tokens are bytes.
        """
        self.bundle = byte_bundle(context_length=context_length)
        self.calls: list[str] = []
        """`METHOD path` of every request."""
        self._folder = tempfile.TemporaryDirectory(prefix="tinkergym-scripted-")
        self.data_dir = Path(self._folder.name)
        config = ServiceConfig(
            data_dir=self.data_dir, models={name: f"/models/{name}" for name in MODELS}, preload=[]
        )
        self._store = _NumberingStore.open(config.store_url)
        self.api_key = self._store.keys.create(LOCAL_TENANT, "scripted")
        self.jobs = ScriptedJobs(self._store, LOCAL_TENANT, config.job_files, context_length)
        self.pool = ScriptedPool(self.jobs, self.bundle, answer)
        self.sampled = self.pool.sampled
        """Every requested batch."""
        self._faults: list[tuple[str, int | None]] = []
        # No job waits for a scheduler.
        self._store.service().touch_part("scheduler", _FOREVER)
        self._served = set[str]()
        for name in ("", *MODELS):  # The first runs all jobs.
            self._serves(name)
        parts = GatewayParts(
            config=config,
            store=self._store,
            catalog=ScriptedCatalog(lambda: self.bundle, self._serves),
            job_check=ScriptedCheck(environments),
            proxy=self.pool,
            tail=EventTail(self._store, _POLL_SECONDS),
            clock=time.time,
        )
        started = Future[None]()
        serve = partial(asyncio.run, self._serve(parts, started))
        self._thread = threading.Thread(target=serve, name="scripted-service", daemon=True)
        self._thread.start()
        started.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, and end open connections and the threads that serve them."""
        if self._thread.is_alive():
            self.jobs.boards.shut()
            self._loop.call_soon_threadsafe(self._closing.set)
            self._thread.join()
            self._store.close()
            self._folder.cleanup()

    def limited_key(self, tokens_per_minute: int) -> str:
        """Return a new key with this limit."""
        return self._store.keys.create(LOCAL_TENANT, "limited", tokens_per_minute=tokens_per_minute)

    def break_next(self, call: str, *, status: int | None = None) -> None:
        """Let the next request whose `METHOD path` contains `call` fail.

        Args:
            call: Part of `METHOD path`; `EVENT job-1` ends that job's event stream instead of sending events.
            status: The status of the response, in our error format; 429 and 503 can be retried, others
                cannot. None drops the connection without a response.
        """
        self._faults.append((call, status))

    def called(self, call: str) -> None:
        """Called with each `METHOD path`, and `EVENT job-1` before events are sent; a test may replace it."""

    # --- inside ---

    def _serves(self, model: str) -> None:
        """Let the gateway know that the pool serves this model, once: a commit empties its cache of reads."""
        if model in self._served:
            return
        self._served.add(model)
        pool_id = f"{POOL}{model}"
        self._store.service().register_pool(pool_id, model, "", "", _FOREVER)
        if model:
            self._store.service().record_pool_memory({pool_id: _MODEL_BYTES})

    async def _serve(self, parts: GatewayParts, started: Future[None]) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        async with AsyncExitStack() as stack:
            try:
                self._app = _application(parts)
                await stack.enter_async_context(self._app.router.lifespan_context(self._app))
                listener = socket.create_server(("127.0.0.1", 0))
                # As `serve_on` does: without it a response waits 40 ms for an acknowledgement.
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
                self._server = _Server(self._answer)
                await self._server.startup([listener])
            except BaseException as error:
                started.set_exception(error)
                raise
            started.set_result(None)
            await self._closing.wait()
            await self._server.end()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or break it as prepared."""
        if scope["type"] != "http":
            return
        call = f"{scope['method']} {scope['path']}"
        self.calls.append(call)
        await to_thread.run_sync(self.called, call)
        broken, status = self._fault(call)
        if broken:
            await self._break(status, scope, receive, send)
        elif call.endswith("/events"):
            await self._app(scope, receive, partial(self._send_events, scope, send))
        elif scope["method"] in {"POST", "DELETE"} and scope["path"].startswith("/v1/jobs"):
            await self._app(scope, receive, partial(self._look_and_send, send))
        else:
            await self._app(scope, receive, send)

    def _fault(self, call: str) -> tuple[bool, int | None]:
        for index, (part, status) in enumerate(self._faults):
            if part in call:
                del self._faults[index]
                return True, status
        return False, None

    async def _break(self, status: int | None, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        if status is None:
            return await self._server.drop(scope)
        kinds = {kind.http_status: kind for kind in (ServiceUnavailableError, TooManyRequestsError)}
        error = kinds.get(status, TinkerGymError)("broken on purpose").to_wire()
        return await JSONResponse({"error": error}, status)(scope, receive, send)

    async def _look_and_send(self, send: Send, message: Message) -> None:
        """Let the pool see what a request changed before its client hears of it."""
        if message["type"] == "http.response.start":
            await to_thread.run_sync(self.jobs.schedule)
        await send(message)

    async def _send_events(self, scope: Scope, send: Send, message: Message) -> None:
        if message.get("body"):
            call = f"EVENT {scope['path'].removeprefix('/v1/jobs/').removesuffix('/events')}"
            await to_thread.run_sync(self.called, call)
            if self._fault(call)[0]:
                return await self._server.drop(scope)
        return await send(message)


_built: list[FastAPI] = []


def _application(parts: GatewayParts) -> FastAPI:
    """Return the gateway's application over `parts`, whose routes a process builds once."""
    if not _built:
        _built.append(create_app(parts))
    app = copy(_built[0])
    app.state, app.middleware_stack = State({"parts": parts}), None
    return app


class _Server(uvicorn.Server):
    """One whose end does not wait for its clients."""

    def __init__(self, app: Callable[[Scope, Receive, Send], object]) -> None:
        config = uvicorn.Config(
            app,
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            ws="none",
            timeout_keep_alive=300,
        )
        config.load()
        super().__init__(config)
        self.lifespan = config.lifespan_class(config)

    async def drop(self, scope: Scope) -> None:
        """Close the connection of a request without a response."""
        for connection in list(self.server_state.connections):
            if getattr(connection, "scope", None) is scope:
                connection.transport.abort()
        await asyncio.sleep(0)

    async def end(self) -> None:
        """Stop listening, and end all requests."""
        for server in self.servers:
            server.close()
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)


class _NumberingStore(Store):
    """A store whose jobs are numbered, so that a test can name them."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._numbers = count(1)

    def tenant(self, tenant_id: str) -> TenantStore:
        """Return the store as one tenant sees it."""
        return _NumberingTenant(self._db, tenant_id, self._clock, self._numbers)


class _NumberingTenant(TenantStore):
    def __init__(self, database: object, tenant_id: str, clock: object, numbers: count[int]) -> None:
        super().__init__(database, tenant_id, clock)  # type: ignore[arg-type]
        self._numbers = numbers

    def new_job_id(self) -> str:
        return f"job-{next(self._numbers)}"
