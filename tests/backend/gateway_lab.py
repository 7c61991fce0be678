"""A real gateway on a real store, with a pool that is a real tiny server.

Requests are handed to the application in this process; those of some files go through uvicorn.
"""

import asyncio
import json
import math
import secrets
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from backend.admission.facts import Checked
from backend.config import Prices, ServiceConfig
from backend.gateway.app import create_app
from backend.gateway.event_tail import EventTail
from backend.gateway.pool_proxy import PoolProxy
from backend.gateway.uvicorn_server import protocol
from backend.gateway.wiring import GatewayParts
from backend.settings.gateway_limits import GatewayLimits
from backend.store.key_rows import LOCAL_TENANT
from backend.store.store import Store
from backend.testing.scripted_catalog import ScriptedCatalog
from backend.worker_url import unix_url
from tinkergym.errors import UnknownModelError
from tinkergym.schema.views import ModelView, RendererBundle

SIZES = {
    "nano": (1024, 256),
    "tiny": (1024, 256),
    "short": (512, 256),
    "narrow": (1024, 255),
    "large": (2048, 300),
    "unlisted": (1024, 256),
}
"""Of models: context and vocabulary. All but the last are in the operator's list."""


class SizedCatalog(ScriptedCatalog):
    """One model, `nano`, and unlisted ones of its family that differ in size."""

    def __init__(self):
        super().__init__(lambda: self.renderer("nano"), lambda model: None)

    def listed(self):
        return [ModelView(name="nano", context_length=1024)]

    def known_as(self, model):
        return model.rstrip("/")

    def facts(self, model):
        _, vocabulary_size = SIZES[self.renderer(model).model]
        return replace(super().facts(model), vocabulary_size=vocabulary_size)

    def renderer(self, model, chat_template=""):
        if model not in SIZES:
            raise UnknownModelError(f"unknown model {model!r}", field="model")
        return RendererBundle(
            model=model,
            tokenizer_json="{}",
            chat_template="",
            stop_ids=[1],
            context_length=SIZES[model][0],
            sha256="0" * 64,
        )


@dataclass
class HangingCheck:
    """Accepts every job, unless told what to raise."""

    refusal: Exception | None = None
    hangs_for: str = ""
    """The tenant whose jobs are not checked before `goes_on` is set."""
    goes_on: threading.Event = field(default_factory=threading.Event)
    hanging: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    """Released for each check that begins to hang."""

    def check_evaluations(self, spec, tenant_id):
        return {}

    def check(self, spec, tenant_id):
        if tenant_id == self.hangs_for:
            self.hanging.release()
            assert self.goes_on.wait(120)
        if self.refusal:
            raise self.refusal
        return Checked(packs={"board": "0.1.0"}, environment_prompt="Play to win.")


@dataclass
class PoolEndpoint:
    """A pool's endpoint on a Unix socket; remembers what it was asked."""

    token: str = "pool-secret"
    asked: list = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    """The second half of a sample answer waits for it."""
    dies: threading.Event = field(default_factory=threading.Event)
    """Ends such a waiting answer in the middle."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    waiting: int = 0
    """Leases that wait for episodes, and requests that wait for a call."""
    most_waiting: int = 0
    proof: int = 200
    """The status of what is answered to the question whether it can be sampled."""
    samples: bool | None = True
    """Whether it says that it was; None as former workers, which say nothing."""
    no_episodes: threading.Event = field(default_factory=threading.Event)
    """While it is set, no waiting request is answered."""

    def wait_until_asked(self, times: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.asked) >= times, timeout=120)

    def wait_until_waiting(self, leases: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.waiting >= leases, timeout=120)

    async def _wait(self, seconds):
        with self.changed:
            self.waiting += 1
            self.most_waiting = max(self.most_waiting, self.waiting)
            self.changed.notify_all()
        await asyncio.sleep(seconds)
        while self.no_episodes.is_set():
            await asyncio.sleep(0.01)
        self.waiting -= 1

    def app(self):
        async def sample(request: Request):
            batch = await self._take(request)
            if batch is None:
                return self._refused()
            ids = [wanted["request_id"] for wanted in batch["requests"]]

            async def lines():
                for number, request_id in enumerate(ids):
                    if number:
                        while not self.gate.is_set():
                            if self.dies.is_set():
                                raise ConnectionResetError("the pool was killed")
                            await asyncio.sleep(0.01)
                    yield json.dumps({"request_id": request_id, "from": self.token}) + "\n"

            return StreamingResponse(lines(), media_type="application/x-ndjson")

        async def lease(request: Request):
            body = await self._take(request)
            if body is None:
                return self._refused()
            if body["wait_seconds"] and not body["renew"]:
                await self._wait(body["wait_seconds"])
            return JSONResponse({"episodes": [], "lost": body["renew"], "job_state": "running"})

        async def call_done(request: Request):
            await self._wait(float(request.query_params["seconds"]))
            return Response(status_code=204)

        async def vanished(request: Request):
            await self._take(request)
            return Response(status_code=204)

        async def prove(request: Request):
            if self.samples is None:
                return Response(status_code=204)
            return JSONResponse({"sampled": self.samples}, status_code=self.proof)

        async def report(request: Request):
            worker = {"worker_id": "env-1", "plays_for": "ada", "silent_seconds": 0.5}
            about = {"started_at": 1.0, "node": "here", "device": "cpu", "environment_workers": [worker]}
            return JSONResponse(about)

        async def submit(request: Request):
            body = await self._take(request)
            if body is None:
                return self._refused()
            return JSONResponse({"verdicts": ["accepted"] * len(body["results"])})

        return Starlette(
            routes=[
                Route("/sample", sample, methods=["POST"]),
                Route("/episodes/lease", lease, methods=["POST"]),
                Route("/episodes/vanished", vanished, methods=["POST"]),
                Route("/episodes/submit", submit, methods=["POST"]),
                Route("/prove", prove, methods=["POST"]),
                Route("/report", report, methods=["POST"]),
                Route("/policies/wait", call_done, methods=["POST"]),
            ]
        )

    async def _take(self, request):
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return None
        body = json.loads(await request.body())
        with self.changed:
            self.asked.append((request.url.path, dict(request.query_params), body))
            self.changed.notify_all()
        return body

    def _refused(self):
        return JSONResponse(
            {"error": {"type": "AuthenticationError", "message": "the pool's token is wrong"}},
            status_code=401,
        )


_OVER_SOCKETS = {
    *("test_app", "test_request_limits", "test_event_tail", "test_pool_proxy"),
    *("test_routes_events", "test_routes_sample", "test_routes_episodes"),
}
"""Test files about connections, or responses that arrive in parts."""


class InProcess(httpx.BaseTransport):
    """Hands requests to an application that runs on a loop in another thread."""

    def __init__(self, app, loop):
        self._app, self._loop = httpx.ASGITransport(app, raise_app_exceptions=False), loop

    def handle_request(self, request):
        request.read()
        return asyncio.run_coroutine_threadsafe(self._answer(request), self._loop).result(120)

    async def _answer(self, request):
        answer = await self._app.handle_async_request(request)
        body = httpx.ByteStream(b"".join([chunk async for chunk in answer.stream]))
        return httpx.Response(answer.status_code, headers=answer.headers, stream=body)


class Keys(dict):
    """Keys of tenants by name, each created when it is first used."""

    def __init__(self, store, tenants):
        super().__init__()
        self._store, self._tenants = store, tenants

    def __missing__(self, name):
        self[name] = self._store.keys.create(self._tenants[name], "test")
        return self[name]


class Running:
    """A uvicorn server in a thread."""

    def __init__(self, app, listener, **settings):
        self.server = uvicorn.Server(
            uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, **settings)
        )
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listener]}, daemon=True)
        self.thread.start()

    def stop(self):
        self.server.should_exit = True
        self.thread.join(timeout=60.0)


@dataclass
class Gateway:
    """The running gateway with two tenants that only this test knows."""

    url: str
    store: Store
    config: ServiceConfig
    check: HangingCheck
    app: Callable
    loop: asyncio.AbstractEventLoop
    over_sockets: bool = False
    tenants: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)

    def client(self, tenant: str = "ada") -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.keys[tenant]}"} if tenant else {}
        transport = None if self.over_sockets else InProcess(self.app, self.loop)
        return httpx.Client(
            base_url=self.url,
            headers=headers,
            timeout=120,
            trust_env=False,
            verify=False,  # reads no certificates, which takes longer than most tests
            transport=transport,
        )

    def tenant(self, name: str = "ada"):
        return self.store.tenant(self.tenants[name])

    def connect(self) -> socket.socket:
        """Return a bare connection, for what no decent client sends."""
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=120)


@pytest.fixture(scope="session")
def running_gateway(tmp_path_factory):
    limits = GatewayLimits(
        body_bytes=200_000,
        bodies_bytes=600_000,
        request_seconds=1.5,
        job_bytes=100_000,
        samples_in_flight=4,
        connections=100,
        stored_images=4,
    )
    data_dir = tmp_path_factory.mktemp("gateway")
    listed = {name: f"/models/{name}" for name in SIZES if name != "unlisted"}
    config = ServiceConfig(
        data_dir=data_dir,
        limits=limits,
        lease_seconds=30,
        models=listed,
        host_names=["gym.example"],
        prices=Prices(job_hour=3.6, million_tokens=2.0, currency="EUR"),
    )
    store = Store.open(config.store_url)
    check = HangingCheck()
    parts = GatewayParts(
        config=config,
        store=store,
        catalog=SizedCatalog(),
        job_check=check,
        proxy=PoolProxy(),
        tail=EventTail(store, poll_seconds=0.02),
        clock=time.time,
    )
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as serve_on does
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    app, loop = create_app(parts), Future()

    async def on_its_loop(scope, receive, send):
        if scope["type"] == "lifespan":
            loop.set_result(asyncio.get_running_loop())
        await app(scope, receive, send)

    running = Running(on_its_loop, listener, http=protocol(limits), ws="none")
    yield Gateway(url, store, config, check, app, loop.result(120))
    running.stop()
    store.close()


@pytest.fixture
def gateway(request, running_gateway):
    tenants = {name: f"{name}-{secrets.token_hex(4)}" for name in ("ada", "bob")} | {"owner": LOCAL_TENANT}
    for tenant in tenants.values():
        running_gateway.store.keys.ensure_tenant(tenant)
    service = running_gateway.store.service()
    for part in service.parts(time.time()):
        service.forget_part(part)  # it was another test's
    for pool in service.pools(time.time(), max_age=math.inf):
        service.remove_pool(pool.pool_id)
    yield replace(
        running_gateway,
        tenants=tenants,
        keys=Keys(running_gateway.store, tenants),
        over_sockets=request.path.stem in _OVER_SOCKETS,
    )
    running_gateway.check.refusal, running_gateway.check.hangs_for = None, ""
    running_gateway.check.goes_on.clear()


@pytest.fixture
def client(gateway):
    with gateway.client() as client:
        yield client


@pytest.fixture
def owner(gateway):
    """Return a client of who started the service."""
    with gateway.client("owner") as client:
        yield client


@pytest.fixture
def start_pool(gateway, tmp_path):
    """Return a function that starts a scripted pool and makes it known under an id."""
    running = []

    def start(pool_id="pool-1", model="nano", token="pool-secret"):
        path = tmp_path / f"{pool_id}.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen()
        pool = PoolEndpoint(token)
        pool.gate.set()
        running.append((pool_id, Running(pool.app(), listener, lifespan="off")))
        gateway.store.service().register_pool(pool_id, model, unix_url(path), token, time.time())
        return pool

    yield start
    for pool_id, server in running:
        gateway.store.service().remove_pool(pool_id)
        server.stop()


@pytest.fixture
def spec():
    return {"environment": {"id": "board/TicTacToeVs-v0"}, "steps": 3, "rollout": "client"}


@pytest.fixture
def in_background():
    """Return `submit` of a small thread pool, for requests that wait."""
    with ThreadPoolExecutor(4) as threads:
        yield threads.submit
