"""Tells those who wait for a job's events that there are new ones: one look at the store for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from starlette.concurrency import run_in_threadpool

from backend.store.store import Store
from tinkergym.errors import TinkerGymError

POLL_SECONDS = 0.1
"""Other processes write the events, and SQLite tells nobody. One look costs 0.3 ms, whoever waits."""

_log = logging.getLogger(__name__)


class EventTail:
    """Watches the event log while somebody waits for it. Belongs to one event loop."""

    def __init__(self, store: Store, poll_seconds: float = POLL_SECONDS) -> None:
        self._store = store
        self._poll_seconds = poll_seconds
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def watch(self, job_id: str) -> Iterator[asyncio.Event]:
        """Hand out an event that is set, again and again, when the job may have news.

        It starts out set: what was written before the watch began counts as news.
        """
        news = asyncio.Event()
        news.set()
        self._waiting[job_id].add(news)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look())
        try:
            yield news
        finally:
            self._waiting[job_id].discard(news)
            if not self._waiting[job_id]:
                del self._waiting[job_id]

    async def close(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _look(self) -> None:
        # Begins before the newest event, so that one written between the watch and this line is not missed.
        position = 0
        first = True
        while self._waiting:
            try:
                if first:
                    position = await run_in_threadpool(self._store.last_position)
                    changed = set(self._waiting)
                    first = False
                else:
                    position, changed = await run_in_threadpool(self._store.jobs_with_news, position)
            except TinkerGymError as error:  # a locked or full database; those who wait go on waiting
                _log.warning("cannot look for events: %s", error)
                changed = set()
            for job_id in changed:
                for news in self._waiting.get(job_id, ()):
                    news.set()
            await asyncio.sleep(self._poll_seconds)
