"""Jobs whose environment is behind a server: who may, what is checked, and what of them is stored."""

from __future__ import annotations

from typing import TypeVar

from backend.config import ServiceConfig
from backend.environments.tokens import EnvTokens, without_token
from backend.environments.urls import as_remote, is_remote, pinned
from tinkergym.schema.job_spec import PlayedSpec
from tinkergym.schema.jobs import AnyJobSpec

Played = TypeVar("Played", bound=PlayedSpec)


def by_id(spec: AnyJobSpec) -> AnyJobSpec:
    """Return the job with an address that was given as the environment's id written out."""
    if not isinstance(spec, PlayedSpec):
        return spec
    return spec.model_copy(update={"environment": as_remote(spec.environment)})


def allowed(spec: Played, config: ServiceConfig) -> Played:
    """Return the job as the service would play it, with the server's address looked up.

    Raises:
        InvalidRequestError: The operator does not allow this server.
    """
    # What a client plays, it reaches from where it is.
    if not is_remote(spec.environment) or spec.rollout != "server":
        return spec
    return spec.model_copy(update={"environment": pinned(spec.environment, config.environment_urls)})


def to_store(spec: AnyJobSpec, config: ServiceConfig, tenant_id: str) -> AnyJobSpec:
    """Return the job as it may be seen by everybody who may see it: without the server's token."""
    if not isinstance(spec, PlayedSpec) or not is_remote(spec.environment):
        return spec
    if spec.rollout == "server":
        environment = EnvTokens(config.tokens_dir).put_away(spec.environment, tenant_id)
    else:
        environment = without_token(spec.environment)
    return spec.model_copy(update={"environment": environment})
