"""Waiting for one of the fairly shared places on an event loop."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from backend.fairness.fair_places import FairPlaces


class Turns:
    """Belongs to one event loop. A request that is cancelled while it waits leaves the queue."""

    def __init__(self, places: FairPlaces) -> None:
        self._places = places
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[None]] = {}

    def is_full(self, owner: str) -> bool:
        """Whether another request of this owner would wait."""
        return self._places.is_full(owner)

    def enter_now(self, owner: str) -> int | None:
        """Take a place if one is free; returns the request's number, which must `leave`, or None."""
        if self._places.is_full(owner):
            return None
        number = next(self._numbers)
        self._places.add(number, owner)
        self._admit()
        return number

    async def enter(self, owner: str) -> int:
        """Wait for a place; returns the number of the request, which must `leave`."""
        number = next(self._numbers)
        self._places.add(number, owner)
        self._admit()
        if not self._places.inside(number):
            turn = self._waiting[number] = asyncio.get_running_loop().create_future()
            try:
                await turn
            except BaseException:
                # Cancelled while it waited, or just after it got its place: either is given up.
                self.leave(number)
                raise
            finally:
                del self._waiting[number]
        return number

    def leave(self, number: int) -> None:
        """Give a request's place to the next one."""
        self._places.remove(number)
        self._admit()

    def outstay(self, number: int) -> None:
        """Let another request have this one's place too; only its own owner still waits for it to leave."""
        self._places.outstay(number)
        self._admit()

    @asynccontextmanager
    async def taken(self, owner: str) -> AsyncIterator[None]:
        """Hold a place."""
        number = await self.enter(owner)
        try:
            yield
        finally:
            self.leave(number)

    def _admit(self) -> None:
        for number in self._places.admit():
            turn = self._waiting.get(number)
            if turn is not None and not turn.done():
                turn.set_result(None)
