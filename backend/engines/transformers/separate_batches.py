"""Batches that are sampled apart from all other requests: which one is computed next, and how often.

It only counts places and seconds; it does not depend on requests or the model. Belongs to one thread.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from backend.fairness.fair_places import FairPlaces

Batch = TypeVar("Batch")


class SeparateBatches(Generic[Batch]):
    """Batches of tenants: one of each tenant at a time, at most `at_once`, forward by forward in turn.

    The queue of all other requests gets its part of the time: for each second of a batch, as many seconds as
    its tenants are, divided by the number of batches. So every tenant has an equal part.
    """

    def __init__(self, at_once: int) -> None:
        """Begin at most this many; each has a cache of its own."""
        self._places = FairPlaces(at_once, most_of_one=1)
        self._numbers = itertools.count()
        self._waiting: dict[int, Batch] = {}
        self._begun: OrderedDict[int, Batch] = OrderedDict()
        """The one that is computed next comes first."""
        self._owed_seconds = 0.0
        """Seconds that the queue may compute before the next forward of a batch."""

    def __bool__(self) -> bool:
        return bool(self._begun)

    def add(self, owner: str, batch: Batch) -> None:
        """Begin a tenant's batch when there is a place for it."""
        number = next(self._numbers)
        self._waiting[number] = batch
        self._places.add(number, owner)
        self._admit()

    def is_due(self, *, queue_idle: bool) -> bool:
        """Return whether a batch is computed next, not the queue."""
        return bool(self._begun) and (queue_idle or self._owed_seconds <= 0)

    def next(self) -> Batch:
        """Return the batch that is computed next; after it, the others have their turn."""
        number, batch = next(iter(self._begun.items()))
        self._begun.move_to_end(number)
        return batch

    def batch_took(self, seconds: float, *, queue_tenants: int) -> None:
        """Note for how long a batch computed, and how many tenants the queue has."""
        # What the queue computed beyond its part before is not held against it.
        self._owed_seconds = max(0.0, self._owed_seconds) + seconds * queue_tenants / len(self._begun)

    def queue_took(self, seconds: float) -> None:
        """Note for how long the queue computed."""
        self._owed_seconds -= seconds

    def remove(self, batch: Batch) -> None:
        """Remove a batch that is done; another one takes its place."""
        number = next(number for number, begun in self._begun.items() if begun is batch)
        del self._begun[number]
        self._places.remove(number)
        self._admit()

    def remove_waiting(self, is_over: Callable[[Batch], bool]) -> list[Batch]:
        """Remove and return the batches for which this holds, of those that have not begun."""
        over = {number: batch for number, batch in self._waiting.items() if is_over(batch)}
        for number in over:
            del self._waiting[number]
            self._places.remove(number)
        return list(over.values())

    def drain(self) -> list[Batch]:
        """Remove and return all."""
        batches = [*self._begun.values(), *self._waiting.values()]
        for number in [*self._begun, *self._waiting]:
            self._places.remove(number)
        self._begun.clear()
        self._waiting.clear()
        return batches

    def _admit(self) -> None:
        for number in self._places.admit():
            self._begun[number] = self._waiting.pop(number)
