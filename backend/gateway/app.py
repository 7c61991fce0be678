"""The gateway's application: routes, limits and errors put together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI

from backend.dashboard.pages import dashboard_routes
from backend.evaluations.service_evaluations import ServiceEvaluations
from backend.gateway import (
    error_responses,
    routes_account,
    routes_adapters,
    routes_data,
    routes_episodes,
    routes_evaluations,
    routes_events,
    routes_images,
    routes_jobs,
    routes_operation,
    routes_policies,
    routes_runs,
    routes_sample,
    routes_series,
    routes_served_names,
    routes_service,
    routes_stored_episodes,
)
from backend.gateway.dependencies import document
from backend.gateway.fair_threads import FairRoute, FairThreads
from backend.gateway.host_check import HostCheck
from backend.gateway.request_limits import RequestLimits
from backend.gateway.session_cookie import SessionCookie
from backend.gateway.wiring import GatewayParts
from backend.network.server_stop import AnswersAtStop
from backend.openai_api import routes_chat, routes_names, routes_sessions, routes_text
from backend.openai_api.program_sessions import ProgramSessions

_JOB_CHECK_THREADS = 8
"""Submissions that are checked, or wait for their check, at once; further ones queue. A tenant has half."""

_CATALOG_THREADS = 4
"""Requests that read models' or packs' files at once. A tenant has half."""

_UPLOAD_THREADS = 4
"""Chunks of data that are written at once. A tenant's are written one after the other, within its limit."""

_ROUTE_THREADS = 40
"""Routes that read or write the store at once. A tenant has a quarter."""

_PROGRAM_THREADS = 256
"""Calls of agent programs elsewhere that wait for their tokens; of one session a quarter."""
_PROGRAM_SECONDS = 3600.0

_HEALTH_THREADS = 2
"""Of their own, so that the service tells its health while all others are busy."""
_HEALTH_SECONDS = 10.0

_BODY_SECONDS = 60.0
"""How long one body may be parsed or written, or the store be read; on an idle machine a second."""

_CATALOG_SECONDS = 600.0
"""How long reading a model or checking a job may take, which may download a model or reset environments."""


def _threads() -> dict[str, FairThreads]:
    """Return the threads for each kind of work that blocks, by their name in the application's state."""
    return {
        "job_checks": FairThreads(
            _JOB_CHECK_THREADS, of_tenant=_JOB_CHECK_THREADS // 2, seconds=_CATALOG_SECONDS
        ),
        "catalog_reads": FairThreads(
            _CATALOG_THREADS, of_tenant=_CATALOG_THREADS // 2, seconds=_CATALOG_SECONDS
        ),
        # Parsing one takes many times its size in memory.
        "large_bodies": FairThreads(1, seconds=_BODY_SECONDS),
        # They have one child process, which checks one image at a time.
        "image_checks": FairThreads(1, seconds=_BODY_SECONDS),
        "upload_writes": FairThreads(_UPLOAD_THREADS, seconds=_BODY_SECONDS),
        "route_threads": FairThreads(_ROUTE_THREADS, of_tenant=_ROUTE_THREADS // 4, seconds=_BODY_SECONDS),
        "program_calls": FairThreads(
            _PROGRAM_THREADS, of_tenant=_PROGRAM_THREADS // 4, seconds=_PROGRAM_SECONDS
        ),
        "health_threads": FairThreads(_HEALTH_THREADS, of_tenant=_HEALTH_THREADS, seconds=_HEALTH_SECONDS),
    }


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    parts: GatewayParts = app.state.parts
    threads = _threads()
    for name, each in threads.items():
        setattr(app.state, name, each)
    app.state.evaluations = ServiceEvaluations(parts.config.limits, parts.config.environment_variables)
    app.state.program_sessions = ProgramSessions()
    yield
    app.state.program_sessions.close()
    await parts.tail.close()
    await parts.key_watch.close()
    await parts.rates.close()
    await parts.pool_proofs.close()
    await parts.proxy.close()
    parts.image_check.close()
    for each in threads.values():
        each.close()


def create_app(parts: GatewayParts) -> FastAPI:
    """Build the application over `parts`, which it closes when it shuts down."""
    app = FastAPI(
        title="tinkergym",
        openapi_url="/v1/openapi.json",
        # Their pages load scripts from other origins.
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
        # A path with an extra slash is unknown, not a redirect to an arbitrary host.
        redirect_slashes=False,
    )
    app.state.parts = parts
    app.openapi = partial(document, app)  # type: ignore[method-assign]
    for module in (
        # Routes are matched in this order; requests to these two are the most frequent.
        routes_sample,
        routes_chat,
        routes_jobs,
        routes_adapters,
        routes_data,
        routes_events,
        routes_episodes,
        routes_evaluations,
        routes_images,
        routes_policies,
        routes_runs,
        routes_series,
        routes_served_names,
        routes_service,
        routes_operation,
        routes_stored_episodes,
        routes_account,
        routes_names,
        routes_sessions,
        routes_text,
    ):
        app.include_router(module.router)
    app.include_router(dashboard_routes(FairRoute))
    error_responses.install(app)
    # The last is the outermost: a browser's session has become a key before limits count by key.
    app.add_middleware(HostCheck, names=[parts.config.host, *parts.config.host_names])
    app.add_middleware(RequestLimits, limits=parts.config.limits)
    app.add_middleware(SessionCookie)
    app.add_middleware(AnswersAtStop, answer=error_responses.error_response)
    return app
