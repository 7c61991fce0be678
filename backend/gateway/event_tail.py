"""Tells those who wait for a job's events that there are new ones: one look at the store for all of them."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

from starlette.concurrency import run_in_threadpool

from backend.store.store import Store
from tinkergym.errors import TinkerGymError

POLL_SECONDS = 0.1
"""Other processes write the events, and SQLite tells nobody. One look costs 0.3 ms, whoever waits."""

_log = logging.getLogger(__name__)

Value = TypeVar("Value")


class EventTail:
    """Watches the event log while somebody waits for it. Belongs to one event loop."""

    def __init__(self, store: Store, poll_seconds: float = POLL_SECONDS) -> None:
        self._store = store
        self._poll_seconds = poll_seconds
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None
        self._looks = 0
        self._reads: dict[Hashable, asyncio.Task[Any]] = {}

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

    async def read(self, what: Hashable, read: Callable[[], Value]) -> Value:
        """Read the store in a thread, once for all who ask for the same `what` after the same look.

        Hundreds may follow one job; what each of them costs is then a few lines to send.
        """
        # Who heard of news after this read began must not be given what was there before.
        key = self._looks, what
        task = self._reads.get(key)
        if task is None:
            task = self._reads[key] = asyncio.create_task(run_in_threadpool(read))
            task.add_done_callback(lambda _: self._reads.pop(key, None))
        # One of them hanging up must not take it from the others.
        return cast(Value, await asyncio.shield(task))

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
            self._looks += 1
            for job_id in changed:
                for news in self._waiting.get(job_id, ()):
                    news.set()
            await asyncio.sleep(self._poll_seconds)
