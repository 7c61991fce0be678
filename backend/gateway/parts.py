"""What the gateway is made of. `__main__` hands it the real things, a test hands it scripted ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from fastapi import Request

from backend.config import ServiceConfig
from backend.gateway.event_tail import EventTail
from backend.gateway.in_flight import InFlight
from backend.gateway.machine_paths import MachinePaths
from backend.gateway.missing import Missing
from backend.gateway.pool_proxy import PoolProxy
from backend.rollout.models import ModelFacts
from backend.store.store import Store
from tinkergym.wire import ModelView, PlayedSpec, RendererBundle


class ModelCatalog(Protocol):
    """Which models the service offers."""

    def listed(self) -> list[ModelView]:
        """Return the models that are offered by name."""
        ...

    def known_as(self, model: str) -> str:
        """Return the one name of a model, whose path may be written in many ways; an unknown one stays."""
        ...

    def renderer(self, model: str) -> RendererBundle:
        """Return what turns messages into the model's token ids.

        Raises:
            UnknownModelError: The service does not offer the model, or it cannot be read.
        """
        ...

    def facts(self, model: str) -> ModelFacts:
        """Return what the model's files say of it.

        Raises:
            UnknownModelError: The service does not offer the model, or it cannot be read.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What looking at a job's environment has shown; nothing where the service does not play it."""

    packs: dict[str, str] = field(default_factory=dict)
    """Versions of the packs that the job will use."""
    environment_prompt: str | None = None
    """The environment's own system prompt."""


class JobCheck(Protocol):
    """Looks for what would make a job fail, before it exists."""

    def check(self, spec: PlayedSpec) -> Checked:
        """Make and reset the job's environment, if the service plays it.

        Raises:
            InvalidRequestError: The job cannot run; says why and what to do.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class GatewayParts:
    """Everything that the routes use."""

    config: ServiceConfig
    store: Store
    catalog: ModelCatalog
    job_check: JobCheck
    proxy: PoolProxy
    tail: EventTail
    clock: Callable[[], float]
    """Unix seconds."""
    missing: Missing = field(default_factory=Missing)

    @cached_property
    def in_flight(self) -> InFlight:
        """What tenants have asked for and not been answered yet."""
        return InFlight(self.config.limits.samples_in_flight)

    @cached_property
    def machine_paths(self) -> MachinePaths:
        """What only the local owner is shown."""
        return MachinePaths(self.config)


def parts_of(request: Request) -> GatewayParts:
    """Return the parts of the application that serves this request."""
    parts: GatewayParts = request.app.state.parts
    return parts
