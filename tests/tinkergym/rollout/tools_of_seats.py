"""Tools for seats of games, found by their names."""

from __future__ import annotations

import tinkergym as tg

CALLED = []


@tg.tool
def double(number: int) -> int:
    """Return twice a number.

    Args:
        number: Any.
    """
    CALLED.append(number)
    return 2 * number


def unmarked(number: int) -> int:
    """Return a number.

    Args:
        number: Any.
    """
    return number
