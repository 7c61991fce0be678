"""The shop's database, in SQLite, with the tools that an agent has on one customer's orders."""

from __future__ import annotations

import sqlite3

from tinkergym.errors import ToolError
from tinkergym.tools import tool
from tinkergym_dialogue.case import Case

_SCHEMA = """
CREATE TABLE customers (name TEXT PRIMARY KEY) STRICT;
CREATE TABLE orders (
    customer TEXT NOT NULL REFERENCES customers,
    item TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('open', 'closed', 'cancelled', 'returned')),
    PRIMARY KEY (customer, item)
) STRICT;
"""


class Shop:
    """A database in memory, made for one dialogue.

    The tools do what they are told: whether an order may be cancelled or has to be returned is for the agent
    to know.
    """

    def __init__(self, case: Case) -> None:
        """Fill the tables."""
        self._customer = case.customer
        # One environment's calls never overlap, but its executor may move it between threads.
        self._database = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._database.executescript(_SCHEMA)
        for customer in (case.customer, case.other):
            self._database.execute("INSERT INTO customers VALUES (?)", (customer,))
            rows = [(customer, item, status) for item, status in case.orders]
            self._database.executemany("INSERT INTO orders VALUES (?, ?, ?)", rows)

    @tool
    def list_orders(self) -> str:
        """List the customer's orders with their status."""
        rows = self._database.execute(
            "SELECT item, status FROM orders WHERE customer = ? ORDER BY rowid", (self._customer,)
        )
        return " ".join(f"{item}: {status}." for item, status in rows)

    @tool
    def cancel_order(self, item: str) -> str:
        """Cancel an open order.

        Args:
            item: What was ordered.
        """
        return self._set(item, "cancelled")

    @tool
    def return_order(self, item: str) -> str:
        """Take a closed order back.

        Args:
            item: What was ordered.
        """
        return self._set(item, "returned")

    def contents(self) -> str:
        """Return all that is in the database, as SQL."""
        return "\n".join(self._database.iterdump())

    def close(self) -> None:
        """Close the database; may be called twice."""
        self._database.close()

    def _set(self, item: str, status: str) -> str:
        changed = self._database.execute(
            "UPDATE orders SET status = ? WHERE customer = ? AND item = ?", (status, self._customer, item)
        )
        if changed.rowcount != 1:
            raise ToolError(f"there is no order of {item[:40]!r}")
        return f"{item}: {status}."


def right_contents(case: Case) -> str:
    """Return what the database should hold at the end: the unwanted order is undone, all else as it was."""
    shop = Shop(case)
    try:
        undo = shop.cancel_order if case.status == "open" else shop.return_order
        undo.call({"item": case.item})
        return shop.contents()
    finally:
        shop.close()
