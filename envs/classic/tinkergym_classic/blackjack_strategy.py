"""The best strategy for Gymnasium's Blackjack, computed from its rules.

Cards come from an infinite deck, the dealer draws to 17, and a win pays as much as a loss costs.
"""

from __future__ import annotations

from functools import lru_cache

_CARDS = {card: (4 if card == 10 else 1) / 13 for card in range(1, 11)}
"""Probability of each card; 1 is an ace, and ten, jack, queen and king count 10."""

_BUST = 0


def should_hit(total: int, dealer: int, usable_ace: bool) -> bool:
    """Return whether to draw a card.

    Args:
        total: The hand's sum, up to 21, with a usable ace counted as 11.
        dealer: The dealer's open card, 1 to 10.
        usable_ace: Whether an ace counts 11.
    """
    return _hit(total, usable_ace, dealer) > _stick(total, dealer)


def _drawn(total: int, usable_ace: bool, card: int) -> tuple[int, bool]:
    """Return the hand after a card: its sum, and whether an ace still counts 11."""
    total += card
    if card == 1 and total + 10 <= 21:
        return total + 10, True
    if total > 21 and usable_ace:
        return total - 10, False
    return total, usable_ace


@lru_cache(maxsize=1024)
def _worth(total: int, usable_ace: bool, dealer: int) -> float:
    if total > 21:
        return -1.0
    return max(_stick(total, dealer), _hit(total, usable_ace, dealer))


@lru_cache(maxsize=1024)
def _hit(total: int, usable_ace: bool, dealer: int) -> float:
    return sum(p * _worth(*_drawn(total, usable_ace, card), dealer) for card, p in _CARDS.items())


@lru_cache(maxsize=1024)
def _stick(total: int, dealer: int) -> float:
    start = (11, True) if dealer == 1 else (dealer, False)
    ends = _dealer_ends(*start)
    return sum(p * ((total > end) - (total < end)) for end, p in ends.items())


@lru_cache(maxsize=1024)
def _dealer_ends(total: int, usable_ace: bool) -> dict[int, float]:
    """Return the probability of each final sum of the dealer; a bust is 0."""
    if total > 21:
        return {_BUST: 1.0}
    if total >= 17:
        return {total: 1.0}
    ends: dict[int, float] = {}
    for card, chance in _CARDS.items():
        for end, p in _dealer_ends(*_drawn(total, usable_ace, card)).items():
            ends[end] = ends.get(end, 0.0) + chance * p
    return ends
