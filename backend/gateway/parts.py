"""The gateway's dependencies. `__main__` passes the real ones, a test scripted ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from fastapi import Request

from backend.admission.check import Admission
from backend.admission.facts import JobCheck, ModelCatalog
from backend.admission.request_bounds import InFlight
from backend.config import ServiceConfig
from backend.gateway.event_chains import EventChains
from backend.gateway.event_tail import EventTail
from backend.gateway.key_watch import KeyWatch
from backend.gateway.missing import Missing
from backend.gateway.operator_key import OperatorKey
from backend.gateway.pool_proxy import PoolProxy
from backend.gateway.waiting_leases import WaitingLeases
from backend.machine_paths import MachinePaths
from backend.processes.image_check import ImageCheck
from backend.store.quota_room import QuotaRoom
from backend.store.store import Store


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
    def admission(self) -> Admission:
        """Whether a job may run."""
        return Admission(config=self.config, catalog=self.catalog, job_check=self.job_check)

    @cached_property
    def event_chains(self) -> EventChains:
        """Hash chains over the event logs of jobs."""
        return EventChains()

    @cached_property
    def operator_key(self) -> OperatorKey:
        """The key that signs certificates; created at the first start.

        Raises:
            ConfigError: The configured one cannot be used.
        """
        return OperatorKey.at(self.config.operator_key_file, may_create=self.config.operator_key is None)

    @cached_property
    def image_room(self) -> QuotaRoom:
        """How many more images of each tenant fit, as far as this process knows."""
        return QuotaRoom()

    @cached_property
    def image_check(self) -> ImageCheck:
        """Decodes images before they are kept; it must be closed."""
        return ImageCheck()

    @cached_property
    def upload_room(self) -> QuotaRoom:
        """How much more data of each tenant fits, as far as this process knows."""
        return QuotaRoom()

    @cached_property
    def in_flight(self) -> InFlight:
        """Unanswered requests of tenants."""
        return InFlight(self.config.limits.samples_in_flight)

    @cached_property
    def waiting_leases(self) -> WaitingLeases:
        """Clients that wait for the episodes of a job."""
        return WaitingLeases(self.config.jobs_per_pool)

    @cached_property
    def key_watch(self) -> KeyWatch:
        """Ends responses of revoked keys."""
        return KeyWatch(self.store.keys.tenant_of)

    @cached_property
    def machine_paths(self) -> MachinePaths:
        """What only the local owner may see."""
        return MachinePaths(self.config)


def parts_of(request: Request) -> GatewayParts:
    """Return the parts of the application that serves this request."""
    parts: GatewayParts = request.app.state.parts
    return parts
