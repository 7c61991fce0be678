"""The gateway's dependencies: `__main__` passes the real ones, a test scripted ones; and what is missing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

from fastapi import Request

from backend.admission.admission import Admission
from backend.admission.facts import JobCheck, ModelCatalog
from backend.admission.offered_models import FileCatalog
from backend.admission.preflight import Preflight
from backend.catalog.limited_reads import LimitedReads
from backend.config import ServiceConfig
from backend.dashboard.frontend import PACKAGED, Frontend
from backend.fairness.fair_places import FairPlaces
from backend.fairness.turns import Turns
from backend.gateway.episode_index import EpisodeIndex
from backend.gateway.event_chains import EventChains
from backend.gateway.event_tail import EventTail
from backend.gateway.fair_threads import in_turn, read_now
from backend.gateway.key_watch import KeyWatch
from backend.gateway.operator_key import OperatorKey
from backend.gateway.pool_proofs import PoolProofs
from backend.gateway.pool_proxy import PoolProxy
from backend.gateway.rate_shares import RateShares
from backend.gateway.run_series import RunReader
from backend.gateway.slot_queue import RecentQueue
from backend.gateway.token_texts import TokenReader
from backend.machine_paths import MachinePaths
from backend.processes.image_check import ImageCheck
from backend.store.key_rates import Allowance, KeyRate
from backend.store.key_rows import KeyRights
from backend.store.store import Store
from backend.store.usage import QuotaRoom
from tinkergym.agent.renderer import RendererCache
from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.schema.events import ErrorView


class Missing:
    """Call it every few seconds, as the supervisor does by requesting health."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def update(self, names: Sequence[str], now: float) -> dict[str, float]:
        """Record what is missing now; return since when."""
        self._since = {name: self._since.get(name, now) for name in names}
        return self._since


REFUSAL_SECONDS = 60.0
"""After this long without another attempt, the reason why a pool did not start may be outdated."""
_UNKNOWN = ""
"""In place of the tenant, until it is known."""
_MOST_OF_A_POOL = 96
"""A pool has 128 threads for calls that wait."""
_FEWEST_OF_A_JOB = 4
_MOST_SERVED = 1000


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

    async def rights_of(self, key: str) -> KeyRights | None:
        """Return whose key this is and what it allows; None if it is unknown or revoked."""
        return await read_now(_UNKNOWN, self.store.keys.rights_of, key)

    async def open_session(self, key: str) -> str | None:
        """Return a browser's session with the rights of a key; None if the key is not valid."""
        return await in_turn(_UNKNOWN, self.store.keys.open_session, key)

    async def close_session(self, token: str) -> None:
        """End a browser's session."""
        await in_turn(_UNKNOWN, self.store.keys.close_session, token)

    @cached_property
    def frontend(self) -> Frontend:
        """The dashboard's files."""
        return Frontend.read(self.config.dashboard.frontend or PACKAGED)

    @cached_property
    def admission(self) -> Admission:
        """Whether a job may run."""
        return Admission(
            config=self.config, catalog=self.catalog, job_check=self.job_check, refusals=self.refusals
        )

    def refusals(self) -> dict[str, ErrorView]:
        """Return why models cannot be started, unless that may be outdated."""
        found, now = self.store.service().refusals(), self.clock()
        return {name: one.error for name, one in found.items() if now - one.refused_at < REFUSAL_SECONDS}

    @cached_property
    def pool_proofs(self) -> PoolProofs:
        """Whether pools can be sampled."""
        return PoolProofs(self.proxy, self.config.lease_seconds)

    @cached_property
    def queue(self) -> RecentQueue:
        """Who has the models' slots, and who waits for one."""
        return RecentQueue()

    @cached_property
    def event_chains(self) -> EventChains:
        """Hash chains over the event logs of jobs."""
        return EventChains()

    @cached_property
    def runs(self) -> RunReader:
        """Metrics and warnings of runs."""
        return RunReader()

    @cached_property
    def episode_rows(self) -> EpisodeIndex:
        """Stored episodes in brief."""
        return EpisodeIndex()

    @cached_property
    def token_texts(self) -> TokenReader:
        """Tokenizers that decode stored episodes."""
        return TokenReader(lambda model: self.catalog.renderer(self.catalog.known_as(model)).tokenizer_json)

    @cached_property
    def operator_key(self) -> OperatorKey:
        """The key that signs certificates: a configured one, or the service's own in the database.

        Raises:
            ConfigError: The configured one cannot be used.
        """
        if self.config.operator_key is not None:
            return OperatorKey.at(self.config.operator_key)
        return OperatorKey.of_service(self.store.service().keep_secret, self.config.operator_key_file)

    @cached_property
    def served_before(self) -> BoundedDict[tuple[str, str], bool]:
        """Tenants with the names that they sampled: what these need was read. Belongs to the event loop."""
        return BoundedDict(_MOST_SERVED)

    @cached_property
    def renderers(self) -> RendererCache:
        """What renders the conversations of the OpenAI API."""
        return RendererCache()

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
    def waiting_at_pools(self) -> Turns:
        """Requests that wait at a pool, which has few threads, by job; further ones of a job take turns."""
        of_job = max(_FEWEST_OF_A_JOB, _MOST_OF_A_POOL // self.config.jobs_per_pool)
        return Turns(FairPlaces(inf, most_of_one=of_job))

    @cached_property
    def rates(self) -> RateShares:
        """How much keys with limits may sample."""

        async def take(rate: KeyRate, *, unused: float, tokens: int, wanted: bool) -> Allowance:
            count = self.store.keys.rates.take
            return await in_turn(_UNKNOWN, count, rate, unused=unused, tokens=tokens, wanted=wanted)

        return RateShares(take)

    @cached_property
    def key_watch(self) -> KeyWatch:
        """Ends responses of revoked keys."""
        return KeyWatch(self.rights_of)

    @cached_property
    def machine_paths(self) -> MachinePaths:
        """What only the local owner may see."""
        return MachinePaths(self.config)


def assembled(config: ServiceConfig, store: Store, reads: LimitedReads) -> GatewayParts:
    """Return the real parts over a store, for the service and for viewers of finished runs.

    The caller closes `store` and `reads`.
    """
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


def parts_of(request: Request) -> GatewayParts:
    """Return the parts of the application that serves this request."""
    parts: GatewayParts = request.app.state.parts
    return parts
