"""What a dialogue is about: a customer's orders, and the one that they do not want any more."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ITEMS = ("lamp", "clock", "phone", "camera", "book", "mirror", "bell", "chair")
STATUSES = ("open", "closed")
"""An open order was not delivered yet and can be cancelled. A closed one was, and can be returned."""
CUSTOMERS = ("Anna", "Ben", "Clara", "David", "Emma", "Felix")


@dataclass(frozen=True, slots=True)
class Case:
    """One customer with two orders."""

    customer: str
    other: str
    """Another customer with orders of the same items, whom none of this concerns."""
    orders: tuple[tuple[str, str], ...]
    """Item and status."""
    unwanted: int
    """Which of the orders the customer does not want."""
    vague: bool
    """Whether the customer names the item only when asked."""

    @classmethod
    def drawn_by(cls, rng: np.random.Generator) -> Case:
        """Draw a case; all are equally likely."""
        customer, other = (CUSTOMERS[int(one)] for one in rng.permutation(len(CUSTOMERS))[:2])
        items = [ITEMS[int(one)] for one in rng.permutation(len(ITEMS))[:2]]
        orders = tuple((item, STATUSES[int(rng.integers(len(STATUSES)))]) for item in items)
        return cls(customer, other, orders, int(rng.integers(2)), bool(rng.integers(2)))

    @property
    def items(self) -> list[str]:
        """What was ordered."""
        return [item for item, _ in self.orders]

    @property
    def item(self) -> str:
        """What the customer does not want."""
        return self.orders[self.unwanted][0]

    @property
    def status(self) -> str:
        """Of that order."""
        return self.orders[self.unwanted][1]
