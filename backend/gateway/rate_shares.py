"""Rates of keys: how many requests and tokens per minute pass this gateway.

The database counts for all gateways, and is asked about once per second and key; see `store/key_rates.py`.
Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from pydantic_core import from_json

from backend.gateway.fair_threads import in_turn_if_large
from backend.lines_response import whole_lines
from backend.store.key_rates import BLOCK_SECONDS, Allowance, KeyRate
from tinkergym.errors import TinkerGymError, TooManyRequestsError

_log = logging.getLogger(__name__)


class Take(Protocol):
    """`KeyRates.take`, off the event loop."""

    async def __call__(self, rate: KeyRate, *, unused: float, tokens: int, wanted: bool) -> Allowance:
        """Count what was used, and allow more."""
        ...


_NOTHING = Allowance(0, 0, 0)


@dataclass(slots=True)
class _Share:
    """What this gateway may let pass of one key."""

    rate: KeyRate
    allowed: Allowance = _NOTHING
    used: int = 0
    """Requests of the allowance."""
    tokens: int = 0
    """Used since the database was last told."""
    reserved: int = 0
    """What requests in flight may still sample."""
    taken_at: float = -inf
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    exchange: asyncio.Task[None] | None = None
    """The last one with the database."""

    def passes(self, now: float) -> bool:
        """Whether a request passes, as far as this gateway knows."""
        has_tokens = self.allowed.tokens > self.tokens + self.reserved
        return self.used < self.allowed.requests and has_tokens and self.is_fresh(now)

    def is_fresh(self, now: float) -> bool:
        """Whether the database need not be asked again."""
        return now < self.taken_at + BLOCK_SECONDS

    def waits(self, now: float) -> float:
        """Return the seconds until a request passes, if none did when the database was asked."""
        if not self.is_fresh(now):
            return 0.0
        if self.tokens < self.allowed.tokens <= self.tokens + self.reserved:
            return BLOCK_SECONDS  # The database knows nothing of reservations.
        return 0.0 if self.allowed.requests else max(0.0, self.taken_at + self.allowed.wait_seconds - now)


@dataclass(slots=True)
class Reservation:
    """Tokens that a request may still sample."""

    share: _Share
    left: int

    def settle(self, tokens: int) -> None:
        """Give back tokens that were counted, or will not be sampled."""
        settled = min(tokens, self.left)
        self.left -= settled
        self.share.reserved -= settled


class RateShares:
    """Lets requests of keys with limits pass, or refuses them."""

    def __init__(self, take: Take, clock: Callable[[], float] = time.monotonic) -> None:
        self._take, self._clock = take, clock
        self._shares: dict[str, _Share] = {}
        self._task: asyncio.Task[None] | None = None

    async def admit(self, rate: KeyRate, tokens: int) -> None:
        """Count a request and the tokens of its prompts; `reserve` at once what it may sample.

        Raises:
            TooManyRequestsError: The key has used up its requests or tokens of this minute.
        """
        share = self._shares.setdefault(rate.key_id, _Share(rate))
        async with share.asking:
            now = self._clock()
            if not share.passes(now) and not share.waits(now):
                await self._ask(share, wanted=True)
            if not share.passes(self._clock()):
                raise _refused(rate, share.waits(self._clock()))
            share.used += 1
        self.spend(rate, tokens)

    def spend(self, rate: KeyRate, tokens: int) -> None:
        """Count tokens that were sampled."""
        self._shares[rate.key_id].tokens += tokens
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._tell())

    @contextmanager
    def reserved(self, rate: KeyRate, tokens: int) -> Iterator[Reservation]:
        """Let the key's next requests wait for this many tokens, until they are counted or the block ends."""
        share = self._shares[rate.key_id]
        reservation = Reservation(share, tokens)
        share.reserved += tokens
        try:
            yield reservation
        finally:
            reservation.settle(reservation.left)

    async def counted(
        self,
        rate: KeyRate,
        lines: AsyncGenerator[bytes, None],
        reservation: Reservation,
        tenant_id: str,
    ) -> AsyncGenerator[bytes, None]:
        """Pass on the lines of a tenant's response of a pool, and count their tokens."""
        sampled = dict[str, int]()
        try:
            async for chunk in whole_lines(lines):
                for request_id, until in await in_turn_if_large(tenant_id, len(chunk), _tokens_in, chunk):
                    # A completion repeats the tokens of its parts.
                    before = sampled.get(request_id, 0)
                    sampled[request_id] = max(before, until)
                    self.spend(rate, max(0, until - before))
                    reservation.settle(max(0, until - before))
                yield chunk
        finally:
            await lines.aclose()

    async def close(self) -> None:
        """Stop counting; the database does not learn of the last second."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if exchanges := [one.exchange for one in self._shares.values() if one.exchange is not None]:
            await asyncio.wait(exchanges)

    async def _tell(self) -> None:
        """Tell the database what was used, as long as something was."""
        while open_ones := [one for one in self._shares.values() if one.tokens or one.allowed.requests]:
            await asyncio.sleep(BLOCK_SECONDS)
            for share in open_ones:
                async with share.asking:
                    try:
                        await self._ask(share, wanted=False)
                    except TinkerGymError as error:  # A locked or full database; it is told later.
                        _log.warning("cannot count the tokens of %s: %s", share.rate.key_id, error)

    async def _ask(self, share: _Share, *, wanted: bool) -> None:
        """Ask the database; if the caller is cancelled meanwhile, what it was told is not told again."""
        if share.exchange is not None:
            await asyncio.wait([share.exchange])
        share.exchange = asyncio.create_task(self._exchange(share, wanted=wanted))
        await asyncio.shield(share.exchange)

    async def _exchange(self, share: _Share, *, wanted: bool) -> None:
        tokens, unused = share.tokens, share.allowed.requests - share.used
        allowed = await self._take(share.rate, unused=unused, tokens=tokens, wanted=wanted)
        # More may have been sampled meanwhile.
        share.tokens -= tokens
        share.allowed, share.used, share.taken_at = allowed, 0, self._clock()


def _refused(rate: KeyRate, wait: float) -> TooManyRequestsError:
    limits = [
        f"{most} {what}"
        for most, what in ((rate.requests_per_minute, "requests"), (rate.tokens_per_minute, "tokens"))
        if most is not None
    ]
    error = TooManyRequestsError(
        f"this key has used up its rate of {' and '.join(limits)} per minute",
        hint=f"send the request again in {wait:.1f} s",
    )
    error.retry_after_seconds = wait
    return error


def _tokens_in(lines: bytes) -> list[tuple[str, int]]:
    """Return per answer its request, and up to which of its tokens it has them."""
    answers = map(from_json, lines.splitlines())
    return [(one["request_id"], one.get("start", 0) + len(one.get("token_ids", ()))) for one in answers]
