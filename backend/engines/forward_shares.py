"""How much of a forward each tenant gets, so that a burst from one tenant does not slow down the others.

It only counts units of one token's work; it does not depend on requests or the model, and receives the time
as an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

_RECENT_SECONDS = 5.0
"""A tenant counts as active for this long after its last request: between two turns its games are in their
environments, and the next turn must not wait behind a huge forward."""
_READ_TOKENS = 128
"""Number of cached tokens that cost as much attention as computing one token (nano on a CPU)."""


def cost(tokens: int, cached: int) -> int:
    """Return the cost of computing `tokens` after `cached` ones.

    Shares are counted in it, not in tokens: attention over a long past takes as long as more tokens, and a
    tenant with long conversations must not get more of the processor than one with short ones.
    """
    return tokens + cached // _READ_TOKENS


@dataclass(slots=True, kw_only=True)
class ForwardShares:
    """Divides forwards among the recently active tenants."""

    least: int
    """Every tenant's minimum: a smaller one would not make a forward faster."""
    most: int
    """Limit per forward while there are several tenants; the next request of another tenant waits for its
    end."""
    _seen: dict[str, float] = field(default_factory=dict)
    _queued: dict[str, float] = field(default_factory=dict)
    """When each tenant last had more requests than have a slot."""

    @classmethod
    def on(cls, device: str, most: int) -> ForwardShares:
        """Return the values for a device.

        On a GPU a forward of few tokens takes as long as one of hundreds.
        """
        return cls(least=16, most=min(256, most)) if device == "cpu" else cls(least=512, most=most)

    def note(self, owners: Iterable[str], now: float, backlogged: Set[str] = frozenset()) -> None:
        """Record which tenants have requests now, and which have more than have a slot."""
        self._seen.update(dict.fromkeys(owners, now))
        self._queued.update(dict.fromkeys(backlogged, now))
        if len(self._seen) > 1:
            self._seen, self._queued = _recent(self._seen, now), _recent(self._queued, now)

    @property
    def shared(self) -> bool:
        """Return whether there are several tenants."""
        return len(self._seen) > 1

    def divided(self, wanted: Mapping[str, int], backlogged: Set[str] = frozenset()) -> dict[str, int]:
        """Return each tenant's share of the next forward.

        No share exceeds that of the tenant that wants the least, so with n tenants a forward takes at most n
        times as long as for that one alone. Recently active tenants count even if they want nothing now:
        their next request waits for the end of this forward.

        Args:
            wanted: By tenant, the cost of everything that could be computed.
            backlogged: Tenants with more requests than have a slot. While another tenant has none waiting,
                they get half: each of their requests waits long anyway, and theirs cost more than the
                forward, such as a core of which a learner could make use. Not if the other one also sent
                more than have a slot a moment ago: among tenants alike, shorter forwards only cost time.
        """
        if not wanted:
            return {}
        each = min(max(self.least, min(wanted.values())), max(self.least, self.most // len(self._seen)))
        shares = dict.fromkeys(wanted, each)
        if self._seen.keys() - backlogged - self._queued.keys():
            shares |= dict.fromkeys(wanted.keys() & backlogged, max(self.least, each // 2))
        return shares

    def can_wait(self, owners: Set[str], backlogged: Set[str]) -> bool:
        """Return whether a forward for these tenants is less urgent than the work of others.

        So it is if all of them are `backlogged`, see `divided`, and another tenant is not.
        """
        return owners <= backlogged and bool(self._seen.keys() - backlogged)


def _recent(times: Mapping[str, float], now: float) -> dict[str, float]:
    return {owner: seen for owner, seen in times.items() if now - seen <= _RECENT_SECONDS}
