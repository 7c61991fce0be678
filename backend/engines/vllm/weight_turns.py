"""Turns: which weights the model has, and which requests compute with them.

Adapters share the base model's weights, so they compute together. A full-parameter policy has its own
weights: it waits until the others have finished, and then the weights are exchanged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class _Waiter:
    room: int
    alone: bool
    admitted: asyncio.Future[None]


class Rooms:
    """A lock shared by all who want the same room; first come, first served between rooms."""

    def __init__(self, enter: Callable[[int], Awaitable[None]], *, room: int) -> None:
        """Start in `room`; `enter` is awaited before another room is used, while none is occupied."""
        self._enter = enter
        self._room: int | None = room
        self._inside = 0
        self._alone = False
        self._waiting: deque[_Waiter] = deque()
        self._moving: asyncio.Task[None] | None = None

    @contextmanager
    def join(self) -> Iterator[int | None]:
        """Enter the current room without queueing and return it; None if it is closed."""
        if self._alone or self._moving is not None or self._room is None:
            yield None
            return
        # Nothing is awaited since the check, so no one can begin to move to another room in between.
        self._inside += 1
        try:
            yield self._room
        finally:
            self._inside -= 1
            self._admit()

    @asynccontextmanager
    async def hold(self, room: int, *, alone: bool = False) -> AsyncIterator[None]:
        """Wait for a turn in `room`; with `alone` no other caller is inside."""
        waiter = _Waiter(room, alone, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._admit()
        try:
            await waiter.admitted
        except asyncio.CancelledError:
            if waiter in self._waiting:
                self._waiting.remove(waiter)
                self._admit()
            # Admitted and cancelled within one pass of the loop: it counts as inside.
            elif not waiter.admitted.cancelled() and waiter.admitted.exception() is None:
                self._leave(waiter)
            raise
        try:
            yield
        finally:
            self._leave(waiter)

    def _leave(self, waiter: _Waiter) -> None:
        self._inside -= 1
        if waiter.alone:
            self._alone = False
        self._admit()

    def _admit(self) -> None:
        if self._moving is not None or self._alone:
            return
        while self._waiting:
            first = self._waiting[0]
            # Those behind it wait too, even for the current room: a busy room would starve the others.
            if first.room != self._room:
                if self._inside == 0:
                    self._moving = asyncio.ensure_future(self._move(first.room))
                return
            if first.alone and self._inside:
                return
            self._waiting.popleft()
            self._let_in(first)
            if self._alone:
                return

    async def _move(self, room: int) -> None:
        try:
            await self._enter(room)
        except BaseException as error:
            # It is unknown whose weights the model has now; the next room loads its own.
            self._room = None
            failed = [waiter for waiter in self._waiting if waiter.room == room]
            for waiter in failed:
                self._waiting.remove(waiter)
                if not waiter.admitted.done():
                    waiter.admitted.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            self._room = room
            # All that wait for this room enter together, because exchanging weights costs most.
            for waiter in [w for w in self._waiting if w.room == room and not w.alone]:
                self._waiting.remove(waiter)
                self._let_in(waiter)
        finally:
            self._moving = None
            self._admit()

    def _let_in(self, waiter: _Waiter) -> None:
        if waiter.admitted.done():  # cancelled meanwhile
            return
        self._inside += 1
        self._alone = waiter.alone
        waiter.admitted.set_result(None)
