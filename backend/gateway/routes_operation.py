"""For the operator alone: workers, checks, and the ends of logs."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request

from backend.gateway.dependencies import Tenant
from backend.gateway.fair_threads import FairRoute, in_turn
from backend.gateway.log_tails import known_secrets, list_logs, tail
from backend.gateway.routes_service import missing_now
from backend.gateway.service_checks import service_checks
from backend.gateway.wiring import GatewayParts, parts_of
from backend.store.store import PoolRecord, TenantStore
from tinkergym.errors import OperatorOnlyError, ReadOnlyKeyError, TinkerGymError
from tinkergym.schema.operation import MOST_LOG_LINES, LogList, LogTail, Operation, PoolReport, WorkerView
from tinkergym.schema.queue import RunningJob

router = APIRouter(prefix="/v1", route_class=FairRoute)

_REPORT_SECONDS = 2.0
"""How long a pool may take to say how it is."""


@router.get("/operation")
async def show_operation(request: Request, tenant: Tenant) -> Operation:
    """Return the service's workers with what runs on them, and its checks; for the local owner only."""
    _require_owner(tenant)
    parts = parts_of(request)
    pools = await in_turn(tenant.tenant_id, partial(_known_pools, parts))
    # As for the health: what was found when somebody last asked may be long ago.
    since = parts.clock() - parts.config.lease_seconds
    await parts.pool_proofs.ask([pool for pool in pools if pool.seen_at >= since])
    reports = await asyncio.gather(*(_report(parts, pool) for pool in pools))
    heard = {pool.pool_id: report for pool, report in zip(pools, reports, strict=True) if report}
    return await in_turn(tenant.tenant_id, partial(_operation, parts, pools, heard))


@router.get("/logs")
def show_logs(request: Request, tenant: Tenant) -> LogList:
    """List the logs on the gateway's machine; for the local owner's keys that may act."""
    _require_reader(request, tenant)
    return LogList(logs=list_logs(parts_of(request).config.log_dir))


@router.get("/logs/{name}")
def show_log(
    request: Request,
    tenant: Tenant,
    name: str,
    lines: Annotated[int, Query(ge=1, le=MOST_LOG_LINES)] = 200,
) -> LogTail:
    """Return the last lines of a log; for the local owner's keys that may act."""
    _require_reader(request, tenant)
    config = parts_of(request).config
    return tail(config.log_dir, name, lines, known_secrets(config.database_url, os.environ))


def _require_reader(request: Request, tenant: TenantStore) -> None:
    _require_owner(tenant)
    if request.state.read_only:
        raise ReadOnlyKeyError(
            "a read-only key sees no logs",
            hint="they may hold what environments print; use a key that may act",
        )


def _require_owner(tenant: TenantStore) -> None:
    if not tenant.is_local_owner:
        raise OperatorOnlyError(
            "only the service's operator sees this",
            hint="use a key of the tenant `local`, such as in local.json",
        )


def _known_pools(parts: GatewayParts) -> list[PoolRecord]:
    return parts.store.service().pools(parts.clock(), max_age=float("inf"))


async def _report(parts: GatewayParts, pool: PoolRecord) -> PoolReport | None:
    try:
        async with asyncio.timeout(_REPORT_SECONDS):
            return PoolReport.model_validate_json(await parts.proxy.call(pool, "/report", b"", {}))
    except (TinkerGymError, TimeoutError, ValueError):  # It is being replaced, or of another version.
        return None


def _operation(parts: GatewayParts, pools: list[PoolRecord], reports: dict[str, PoolReport]) -> Operation:
    service, now, most = parts.store.service(), parts.clock(), parts.config.lease_seconds
    jobs = defaultdict[str, list[RunningJob]](list)
    for one in service.held_jobs():
        jobs[one.worker_id].append(
            RunningJob(job_id=one.job_id, tenant_id=one.tenant_id, pool_id=one.worker_id)
        )
    workers = []
    for pool in pools:
        report, silent = reports.get(pool.pool_id), max(0.0, now - pool.seen_at)
        workers.append(
            WorkerView(
                worker_id=pool.pool_id,
                kind="pool",
                model=pool.model,
                state="ready" if report and silent <= most else "silent",
                silent_seconds=silent,
                memory_bytes=pool.memory_bytes,
                jobs=jobs[pool.pool_id],
                **({} if report is None else report.model_dump()),
            )
        )
    for host in service.engine_hosts():
        silent = max(0.0, now - host.seen_at)
        workers.append(
            WorkerView(
                worker_id=host.engine_id,
                kind="engine_host",
                model=host.model,
                state="ready" if silent <= most else "silent",
                silent_seconds=silent,
                node=host.node,
                memory_bytes=host.memory_bytes,
            )
        )
    checks = service_checks(parts.config, missing_now(parts), parts.refusals(), now)
    return Operation(workers=workers, checks=checks)
