"""Whether pools can be sampled: one token each, through the same connections as everything else.

Asked for when somebody asks for the service's health, and kept for a few seconds. A pool whose engine sleeps
says so, and one that has sampled a moment ago, too, without computing; so an idle service does nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from backend.gateway.pool_proxy import PoolProxy
from backend.store.store import PoolRecord
from tinkergym.errors import TinkerGymError
from tinkergym.schema.operation import PoolProof

_KEPT_SECONDS = 5.0
_WAIT_SECONDS = 2.0
"""How long a request for the health waits for proofs."""


@dataclass(slots=True)
class _Proof:
    """What is known of one pool. Times are on the monotonic clock."""

    failed: bool | None = None
    """None until it has answered once."""
    resting: bool = False
    """Whether it answered without a token, because its engine sleeps."""
    ask_at: float = 0.0
    asked_at: float = 0.0
    asking: asyncio.Task[None] | None = None


class PoolProofs:
    """Belongs to one event loop."""

    def __init__(
        self, proxy: PoolProxy, silence_seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """A pool that computes something long may take `silence_seconds` for a token."""
        self._proxy, self._silence_seconds, self._clock = proxy, silence_seconds, clock
        self._known: dict[str, _Proof] = {}
        """By the pool's URL."""

    @property
    def failing(self) -> frozenset[str]:
        """The URLs of pools that could not be sampled when they were last asked."""
        return frozenset(url for url, proof in self._known.items() if self._is_failing(proof))

    @property
    def resting(self) -> frozenset[str]:
        """The URLs of pools that answered, but whose engine sleeps, so that it was not sampled."""
        return frozenset(url for url, proof in self._known.items() if proof.resting) - self.failing

    async def ask(self, pools: Sequence[PoolRecord]) -> frozenset[str]:
        """Ask those pools that were not asked a moment ago; return the URLs of all that fail."""
        for url in self._known.keys() - {pool.url for pool in pools}:
            gone = self._known.pop(url)
            if gone.asking is not None:
                gone.asking.cancel()
        for pool in pools:
            proof = self._known.setdefault(pool.url, _Proof())
            if proof.asking is None and self._clock() >= proof.ask_at:
                proof.asked_at = self._clock()
                proof.asking = asyncio.create_task(self._prove(pool, proof))
        asking = [proof.asking for proof in self._known.values() if proof.asking is not None]
        if asking:
            await asyncio.wait(asking, timeout=_WAIT_SECONDS)
        return self.failing

    async def close(self) -> None:
        """Stop asking."""
        await self.ask(())

    def _is_failing(self, proof: _Proof) -> bool:
        if proof.failed is not False:
            return True
        return proof.asking is not None and self._clock() - proof.asked_at > self._silence_seconds

    async def _prove(self, pool: PoolRecord, proof: _Proof) -> None:
        failed = True
        try:
            answer = await self._proxy.call(pool, "/prove", b"", {})
            # A worker of a former version says nothing when it has sampled.
            proof.resting = bool(answer) and not PoolProof.model_validate_json(answer).sampled
            failed = False
        except (TinkerGymError, ValueError):
            pass  # `failing` says so. ValueError: it is of another version.
        finally:
            proof.failed, proof.asking = failed, None
            proof.ask_at = self._clock() + _KEPT_SECONDS
