"""Names of the OpenAI API: which policy a request means, and what renders its conversations."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request

from backend.admission.offered_models import may_name
from backend.gateway.fair_threads import FairThreads, in_turn
from backend.gateway.wiring import GatewayParts, parts_of
from backend.store.store import TenantStore
from tinkergym.agent.renderer import Renderer
from tinkergym.errors import NotFoundError, UnknownModelError
from tinkergym.openai_api.token_requests import Policy
from tinkergym.schema.ids import PolicyRef, policy_of

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPolicy:
    """A policy, and what turns conversations into its tokens."""

    policy: Policy
    renderer: Renderer


async def with_policy(
    request: Request,
    tenant: TenantStore,
    name: str,
    work: Callable[[ServedPolicy], Value],
    caller: str = "",
) -> Value:
    """Return what `work` makes with the policy that a request's `model` names, in a thread.

    Args:
        request: The request.
        tenant: Its tenant.
        name: The name.
        work: What to do with it. One switch of threads for both: two took a third of a request's time.
        caller: What stays with one version of a name that serves two; empty is the request.

    Raises:
        NotFoundError: This tenant has no policy or model of that name. It never means another one.
        InvalidRequestError: It names a job that trains several policies.
    """
    parts = parts_of(request)
    # Clients keep the id of a request when they repeat it.
    whose = caller or request.headers.get("X-Request-Id") or secrets.token_hex(8)

    def call() -> Value:
        return work(_served(parts, tenant, name, whose))

    key = tenant.tenant_id, name
    if key in parts.served_before:
        return await in_turn(tenant.tenant_id, call)
    # Reading a new model's files takes a second or more.
    threads: FairThreads = request.app.state.catalog_reads
    found = await threads.run(tenant.tenant_id, call, abandon_on_cancel=True)
    parts.served_before[key] = True
    return found


def _served(parts: GatewayParts, tenant: TenantStore, name: str, caller: str) -> ServedPolicy:
    if PolicyRef.is_meant(name):
        ref = PolicyRef.find(name)
        if ref is None:
            raise _unknown(name)
        return _policy(parts, tenant, ref)
    if (promoted := tenant.names.all().get(name)) is not None:
        return _policy(parts, tenant, promoted.version_for(caller))
    if not may_name(parts.config, tenant, name):
        raise _unknown(name)
    try:
        bundle = parts.catalog.renderer(parts.catalog.known_as(name))
    except UnknownModelError:
        raise _unknown(name) from None
    return ServedPolicy(policy=Policy(name=bundle.model), renderer=parts.renderers.of(bundle))


def _policy(parts: GatewayParts, tenant: TenantStore, ref: PolicyRef) -> ServedPolicy:
    found = tenant.find_policy(ref, field="model")
    spec = tenant.get_job(found.job_id).spec.for_agent(found.agent)
    bundle = parts.catalog.renderer(spec.model, spec.chat_template)
    # In training, what the job sets replaces what the environment sets.
    variables = {**(spec.played.environment_variables if spec.played else {}), **spec.template_variables}
    return ServedPolicy(
        policy=Policy(
            name=policy_of(found.job_id, found.agent),
            version=None if ref.is_newest else found.version(field="model"),
        ),
        renderer=parts.renderers.of(bundle.with_settings(variables, spec.template_date)),
    )


def _unknown(name: str) -> NotFoundError:
    return NotFoundError(
        f"there is no model or policy {name!r}",
        hint="GET /openai/v1/models lists models and your policies",
        field="model",
    )
