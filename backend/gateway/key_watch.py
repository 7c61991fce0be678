"""Ends long responses whose key was revoked: one query serves all open responses.

Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from tinkergym.errors import TinkerGymError

KEY_CHECK_SECONDS = 1.0
"""How long a response may outlive its key. The query is cached until something writes to the database."""

_log = logging.getLogger(__name__)


class KeyWatch:
    """Checks the keys of open responses while there are some."""

    def __init__(self, rights_of: Callable[[str], Awaitable[object]]) -> None:
        """Prepare.

        Args:
            rights_of: Returns what a key allows; None for a revoked one.
        """
        self._rights_of = rights_of
        self._open: defaultdict[str, set[Callable[[], None]]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def watched(self, key: str, end: Callable[[], None]) -> Iterator[None]:
        """Call `end` if the key is revoked before the block ends."""
        self._open[key].add(end)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
        try:
            yield
        finally:
            self._open[key].discard(end)
            if not self._open[key]:
                del self._open[key]

    async def close(self) -> None:
        """Stop checking."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _poll(self) -> None:
        while self._open:
            await asyncio.sleep(KEY_CHECK_SECONDS)
            for key, ends in list(self._open.items()):
                try:
                    revoked = await self._rights_of(key) is None
                except TinkerGymError as error:  # A locked or full database, or a disk that hangs.
                    _log.warning("cannot check keys: %s", error)
                    continue
                # A copy, as what ends may leave the set.
                for end in list(ends) if revoked else ():
                    end()
