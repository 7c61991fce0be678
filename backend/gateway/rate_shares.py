"""Rates of keys: how many requests and tokens per minute pass this gateway.

The database counts for all gateways, and is asked about once per second and key; see `store/key_rates.py`.
Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from pydantic_core import from_json

from backend.store.key_rates import Allowance, KeyRate
from tinkergym.errors import TinkerGymError, TooManyRequestsError

_BLOCK_SECONDS = 1.0
"""For this long an allowance is used, and so late the database learns what was used."""

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
    taken_at: float = -inf
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    def passes(self, now: float) -> bool:
        """Whether a request passes, as far as this gateway knows."""
        return self.used < self.allowed.requests and self.allowed.tokens > self.tokens and self.is_fresh(now)

    def is_fresh(self, now: float) -> bool:
        """Whether the database need not be asked again."""
        return now < self.taken_at + _BLOCK_SECONDS

    def waits(self, now: float) -> float:
        """Return the seconds until a request passes, if none did when the database was asked."""
        is_refused = not self.allowed.requests and self.is_fresh(now)
        return max(0.0, self.taken_at + self.allowed.wait_seconds - now) if is_refused else 0.0


class RateShares:
    """Lets requests of keys with limits pass, or refuses them."""

    def __init__(self, take: Take, clock: Callable[[], float] = time.monotonic) -> None:
        self._take, self._clock = take, clock
        self._shares: dict[str, _Share] = {}
        self._task: asyncio.Task[None] | None = None

    async def admit(self, rate: KeyRate, tokens: int) -> None:
        """Count a request and the tokens of its prompts.

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

    async def counted(self, rate: KeyRate, lines: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        """Pass on the lines of a response of a pool, and count their tokens."""
        rest, sampled = b"", dict[str, int]()
        try:
            async for chunk in lines:
                *whole, rest = (rest + chunk).split(b"\n")
                for answer in map(from_json, whole):
                    # A completion repeats the tokens of its parts.
                    until = answer.get("start", 0) + len(answer.get("token_ids", ()))
                    before = sampled.get(answer["request_id"], 0)
                    sampled[answer["request_id"]] = max(before, until)
                    self.spend(rate, max(0, until - before))
                yield chunk
        finally:
            await lines.aclose()

    async def close(self) -> None:
        """Stop counting; the database does not learn of the last second."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _tell(self) -> None:
        """Tell the database what was used, as long as something was."""
        while open_ones := [one for one in self._shares.values() if one.tokens or one.allowed.requests]:
            await asyncio.sleep(_BLOCK_SECONDS)
            for share in open_ones:
                async with share.asking:
                    try:
                        await self._ask(share, wanted=False)
                    except TinkerGymError as error:  # A locked or full database; it is told later.
                        _log.warning("cannot count the tokens of %s: %s", share.rate.key_id, error)

    async def _ask(self, share: _Share, *, wanted: bool) -> None:
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
