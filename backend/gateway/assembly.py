"""The gateway's real parts put together, for the service and for viewers of finished runs."""

from __future__ import annotations

import time

from backend.admission.offered_models import FileCatalog
from backend.admission.preflight import Preflight
from backend.catalog.limited_reads import LimitedReads
from backend.config import ServiceConfig
from backend.gateway.event_tail import EventTail
from backend.gateway.pool_proxy import PoolProxy
from backend.gateway.wiring import GatewayParts
from backend.store.store import Store


def assembled(config: ServiceConfig, store: Store, reads: LimitedReads) -> GatewayParts:
    """Return the parts of a gateway over a store; the caller closes `store` and `reads`."""
    catalog = FileCatalog(config, reads)
    return GatewayParts(
        config=config,
        store=store,
        catalog=catalog,
        job_check=Preflight(catalog, config.limits, config.environment_variables),
        proxy=PoolProxy(),
        tail=EventTail(store),
        clock=time.time,
    )
