import asyncio
import threading
from contextlib import closing
from inspect import iscoroutinefunction
from types import ModuleType, SimpleNamespace

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI

from backend.gateway import app
from backend.gateway.fair_threads import FairRoute, FairThreads, in_turn_if_large
from backend.store.key_rows import KeyStore
from backend.store.tenant import TenantStore
from tinkergym.errors import ServiceUnavailableError

LEASE = {"worker_id": "w", "max_episodes": 1}
SAMPLE = {"requests": [{"request_id": "1", "policy": "job-1", "prompt_ids": [1], "max_tokens": 1}]}


def test_gives_every_blocking_route_a_deadline():
    modules = [one for one in vars(app).values() if isinstance(one, ModuleType) and hasattr(one, "router")]
    routes = [route for module in modules for route in module.router.routes]
    assert len(routes) > 30
    assert [r.path for r in routes if not isinstance(r, FairRoute)] == []
    assert [r.path for r in routes if not iscoroutinefunction(r.dependant.call)] == []


def test_leaves_others_their_threads_beside_tenants_hanging_route():
    go_on, router = threading.Event(), APIRouter(route_class=FairRoute)

    def tenant_of(tenant: str):
        return SimpleNamespace(tenant_id=tenant)

    @router.get("/hang")
    def hang(tenant=Depends(tenant_of)) -> str:  # noqa: B008 - FastAPI's way
        if tenant.tenant_id == "bob":
            go_on.wait(120)
        return tenant.tenant_id

    async def play():
        # A long deadline: bob's second request waits for his first, and not for a thread of all.
        with closing(FairThreads(2, seconds=60)) as threads:
            return await ask_all(threads)

    async def ask_all(threads):
        api = FastAPI()
        api.include_router(router)
        api.state.route_threads = threads
        transport = httpx.ASGITransport(api)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            bobs = [asyncio.create_task(client.get("/hang", params={"tenant": "bob"})) for _ in range(50)]
            ada = await client.get("/hang", params={"tenant": "ada"})
            waiting = sum(not one.done() for one in bobs)
            go_on.set()
            return ada.json(), waiting, {one.status_code for one in await asyncio.gather(*bobs)}

    assert asyncio.run(play()) == ("ada", 50, {200})


def test_parses_only_what_is_large_in_a_thread():
    router = APIRouter(route_class=FairRoute)

    @router.get("/parse")
    async def parse(size: int) -> bool:
        return await in_turn_if_large("ada", size, threading.get_ident) == threading.get_ident()

    async def play():
        api = FastAPI()
        api.include_router(router)
        client = httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://gateway")
        with closing(FairThreads(1, seconds=60)) as api.state.route_threads:
            async with client:
                return [(await client.get("/parse", params={"size": size})).json() for size in (9, 2**20)]

    assert asyncio.run(play()) == [True, False]


def test_refuses_an_overdue_route():
    go_on, router = threading.Event(), APIRouter(route_class=FairRoute)

    @router.get("/hang")
    def hang(tenant=Depends(lambda: SimpleNamespace(tenant_id="bob"))) -> bool:  # noqa: B008
        return go_on.wait(120)

    async def play():
        api = FastAPI()
        api.include_router(router)
        transport = httpx.ASGITransport(api)
        client = httpx.AsyncClient(transport=transport, base_url="http://gateway")
        with closing(FairThreads(1, seconds=0.01)) as api.state.route_threads:
            async with client:
                try:
                    await client.get("/hang")
                finally:
                    go_on.set()

    with pytest.raises(ServiceUnavailableError):
        asyncio.run(play())


@pytest.mark.service
@pytest.mark.parametrize(
    ("owner", "method", "ask"),
    [
        (KeyStore, "_rights_of", ("GET", "/v1/jobs", None)),
        (TenantStore, "_model_and_worker", ("POST", "/v1/sample", SAMPLE)),
        (TenantStore, "get_job_and_worker", ("POST", "/v1/jobs/job-1/episodes/lease", LEASE)),
        (TenantStore, "get_job_and_worker", ("POST", "/v1/jobs/job-1/episodes/submit", {"results": []})),
        (TenantStore, "get_job_and_worker", ("GET", "/v1/policies/job-1/calls", None)),
        (TenantStore, "get_job", ("GET", "/v1/jobs/job-1/events", None)),
        (TenantStore, "get_job", ("GET", "/v1/renderer?model=job-1", None)),
        (TenantStore, "change_settings", ("POST", "/v1/jobs/job-1/update", {"settings": {"steps": 2}})),
    ],
)
def test_refuses_requests_of_a_hanging_disk_and_blocks_no_others(gateway, monkeypatch, owner, method, ask):
    go_on = threading.Event()
    monkeypatch.setattr(owner, method, lambda *_: go_on.wait(600))
    monkeypatch.setattr(gateway.app.state.route_threads, "_seconds", 0.03)
    verb, path, body = ask
    try:
        with gateway.client() as client:
            # More than the tenant has threads.
            answers = [client.request(verb, path, json=body) for _ in range(12)]
            assert client.get("/v1/openapi.json").status_code == 200
    finally:
        go_on.set()
    assert {answer.status_code for answer in answers} == {503}
    assert {answer.json()["error"]["type"] for answer in answers} == {"ServiceUnavailableError"}
