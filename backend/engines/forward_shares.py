"""How much of a forward each tenant gets, so that one tenant's flood does not slow the others down.

Pure bookkeeping in units of one token's work. Knows neither rows nor the model; time arrives as an argument.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

_RECENT_SECONDS = 5.0
"""After its last request a tenant still counts for this long: between two turns its games are with their
environments, and the next turn must not wait behind a huge forward."""
_READ_TOKENS = 128
"""Cached tokens that cost as much to attend to as one token costs to compute (nano on a CPU)."""


def cost(tokens: int, cached: int) -> int:
    """Return what it costs to compute `tokens` behind `cached` ones."""
    return tokens + cached // _READ_TOKENS


@dataclass(slots=True, kw_only=True)
class ForwardShares:
    """Divides forwards among the tenants of the last seconds."""

    least: int
    """What every tenant may always have: less would not make a forward faster."""
    most: int
    """Of one forward in all, while there are several tenants; the next one's request waits for its end."""
    _seen: dict[str, float] = field(default_factory=dict)

    @classmethod
    def on(cls, device: str, most: int) -> ForwardShares:
        """Return what suits a device. On a GPU a forward of few tokens takes as long as one of hundreds."""
        return cls(least=16, most=min(256, most)) if device == "cpu" else cls(least=512, most=most)

    def note(self, owners: Iterable[str], now: float) -> None:
        """Say who has requests now."""
        for owner in owners:
            self._seen[owner] = now
        if len(self._seen) > 1:
            self._seen = {owner: seen for owner, seen in self._seen.items() if now - seen <= _RECENT_SECONDS}

    @property
    def shared(self) -> bool:
        """Whether there are several tenants."""
        return len(self._seen) > 1

    def divided(self, wanted: Mapping[str, int]) -> dict[str, int]:
        """Return what each tenant gets of the next forward.

        None gets more than the one that wants the least, so with n tenants a forward takes at most n times as
        long as that one's alone.

        Args:
            wanted: By tenant, the cost of all that it could have computed.
        """
        if not wanted:
            return {}
        each = min(max(self.least, min(wanted.values())), max(self.least, self.most // len(wanted)))
        return dict.fromkeys(wanted, each)
