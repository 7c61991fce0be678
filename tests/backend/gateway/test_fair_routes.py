import asyncio
import threading
from inspect import iscoroutinefunction
from types import ModuleType, SimpleNamespace

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI

from backend.gateway import app
from backend.gateway.fair_routes import FairRoute
from backend.gateway.fair_threads import FairThreads
from tinkergym.errors import ServiceUnavailableError


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
            go_on.wait(20)
        return tenant.tenant_id

    async def play():
        api = FastAPI()
        api.include_router(router)
        # A long deadline: bob's second request waits for his first, and not for a thread of all.
        api.state.route_threads = FairThreads(2, seconds=60)
        transport = httpx.ASGITransport(api)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            bobs = [asyncio.create_task(client.get("/hang", params={"tenant": "bob"})) for _ in range(50)]
            ada = await client.get("/hang", params={"tenant": "ada"})
            waiting = sum(not one.done() for one in bobs)
            go_on.set()
            return ada.json(), waiting, {one.status_code for one in await asyncio.gather(*bobs)}

    assert asyncio.run(play()) == ("ada", 50, {200})


def test_refuses_an_overdue_route():
    go_on, router = threading.Event(), APIRouter(route_class=FairRoute)

    @router.get("/hang")
    def hang(tenant=Depends(lambda: SimpleNamespace(tenant_id="bob"))) -> bool:  # noqa: B008
        return go_on.wait(20)

    async def play():
        api = FastAPI()
        api.include_router(router)
        api.state.route_threads = FairThreads(1, seconds=0.01)
        transport = httpx.ASGITransport(api)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            try:
                await client.get("/hang")
            finally:
                go_on.set()

    with pytest.raises(ServiceUnavailableError):
        asyncio.run(play())
