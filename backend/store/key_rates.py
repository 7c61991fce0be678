"""What is left of the rates of keys: in the database, so that several gateways share it.

A key has a minute's worth of requests and tokens at most, and gets them back evenly. Gateways take requests
in advance and tell later how many tokens were used; so a row is written about once per second.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import select, update

from backend.store.database import Database
from backend.store.tables import api_keys

_MINUTE = 60.0
_NO_LIMIT = 1e18
BLOCK_SECONDS = 1.0
"""A gateway takes as many requests in advance as the key may send in this time, and then asks again."""


@dataclass(frozen=True, slots=True)
class KeyRate:
    """How much a key may request; None is not limited."""

    key_id: str
    requests_per_minute: int | None
    tokens_per_minute: int | None


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a gateway may let pass before it asks again."""

    requests: float
    tokens: float
    """Of all gateways together; not positive if they are used up."""
    wait_seconds: float
    """How long until another request passes, if none does now."""


class KeyRates:
    """Counts for all gateways."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._db, self._clock = database, clock

    def take(self, rate: KeyRate, *, unused: float, tokens: int, wanted: bool) -> Allowance:
        """Count what a gateway has let pass since it last asked, and let it pass more.

        Args:
            rate: The key's.
            unused: Requests that it was allowed and did not use.
            tokens: Tokens of its requests since then, in prompts and completions.
            wanted: Whether it needs requests now.
        """
        most, most_tokens = rate.requests_per_minute or _NO_LIMIT, rate.tokens_per_minute or _NO_LIMIT
        row_of = api_keys.c.key_id == rate.key_id
        with self._db.write() as connection:
            # The lock keeps two gateways from counting the same tokens; SQLite has one writer at a time.
            row = connection.execute(
                select(api_keys.c.requests_left, api_keys.c.tokens_left, api_keys.c.counted_at)
                .where(row_of)
                .with_for_update()
            ).one()
            now = self._clock()
            counted_at = now - _MINUTE if row.counted_at is None else row.counted_at
            minutes = max(0.0, now - counted_at) / _MINUTE
            left = min(most, (row.requests_left or 0.0) + minutes * most + unused)
            tokens_left = min(most_tokens, (row.tokens_left or 0.0) + minutes * most_tokens) - tokens
            # A long completion keeps the key waiting for two minutes at most.
            tokens_left = max(-most_tokens, tokens_left)
            passes = wanted and left >= 1 and tokens_left > 0
            block = min(left // 1, max(1.0, most * BLOCK_SECONDS // _MINUTE)) if passes else 0.0
            now_left = {"requests_left": left - block, "tokens_left": tokens_left}
            # Clocks of gateways differ: with an earlier time the same minutes would be given twice.
            connection.execute(
                update(api_keys).where(row_of).values(**now_left, counted_at=max(now, counted_at))
            )
        wait = max((1 - left) / most, (1 - tokens_left) / most_tokens) * _MINUTE
        return Allowance(block, tokens_left, max(0.0, wait))
