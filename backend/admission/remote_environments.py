"""Jobs whose environment is behind a server: who may, what is checked, and what of them is stored."""

from __future__ import annotations

from typing import TypeVar

from backend.config import ServiceConfig
from backend.environments.tokens import EnvTokens, without_token
from backend.environments.urls import as_remote, is_remote, pinned
from tinkergym.schema.job_spec import EnvironmentRef, PlayedSpec
from tinkergym.schema.jobs import AnyJobSpec

Played = TypeVar("Played", bound=PlayedSpec)


def by_id(spec: AnyJobSpec) -> AnyJobSpec:
    """Return the job with an address that was given as the environment's id written out."""
    if not isinstance(spec, PlayedSpec):
        return spec
    return spec.with_environments(as_remote)


def allowed(spec: Played, config: ServiceConfig) -> Played:
    """Return the job as the service would play it, with the server's address looked up.

    Raises:
        InvalidRequestError: The operator does not allow this server.
    """
    # What a client plays, it reaches from where it is.
    if spec.rollout != "server":
        return spec
    return spec.with_environments(lambda one: pinned(one, config.environment_urls) if is_remote(one) else one)


def to_store(spec: AnyJobSpec, config: ServiceConfig, tenant_id: str) -> AnyJobSpec:
    """Return the job as it may be seen by everybody who may see it: without the server's token."""
    if not isinstance(spec, PlayedSpec):
        return spec
    tokens = EnvTokens(config.tokens_dir)

    def stored(environment: EnvironmentRef) -> EnvironmentRef:
        if not is_remote(environment):
            return environment
        if spec.rollout == "server":
            return tokens.put_away(environment, tenant_id)
        return without_token(environment)

    return spec.with_environments(stored)
