"""Notifies clients that wait for a job's events: one query of the store serves all of them."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast

from starlette.concurrency import run_in_threadpool

from backend.store.store import Store
from tinkergym.errors import TinkerGymError

POLL_SECONDS = 0.1
"""Other processes write the events. Whether any has committed is known without a query, and one query costs
0.3 ms, however many wait."""

_LOOKS_WITHOUT_NEWS = 5
"""After so many looks without a commit the database is read all the same: its notifications may be lost."""

_log = logging.getLogger(__name__)

Value = TypeVar("Value")


class EventTail:
    """Watches the event log while clients wait for it. Belongs to one event loop."""

    def __init__(self, store: Store, poll_seconds: float = POLL_SECONDS) -> None:
        self._store = store
        self._poll_seconds = poll_seconds
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None
        self._looks = 0
        self._commits: int | None = None
        self._quiet_looks = 0
        self._seqs: dict[str, int] = {}
        """The number of each watched job's newest event, at the last look."""
        self._reads: dict[Hashable, asyncio.Task[Any]] = {}

    @contextmanager
    def watch(self, job_id: str) -> Iterator[asyncio.Event]:
        """Yield an asyncio event that is set whenever the job may have news.

        It starts out set: events from before the watch count as news.
        """
        news = asyncio.Event()
        news.set()
        self._waiting[job_id].add(news)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
        try:
            yield news
        finally:
            self._waiting[job_id].discard(news)
            if not self._waiting[job_id]:
                del self._waiting[job_id]

    async def read(self, what: Hashable, read: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        """Run a query of the store once for all clients that ask for the same `what`.

        Hundreds may follow one job; each then only costs the lines sent to it.
        """
        # A client notified after this query began must not get its older result.
        key = self._looks, what
        task = self._reads.get(key)
        if task is None:
            task = self._reads[key] = asyncio.create_task(read())
            task.add_done_callback(lambda _: self._reads.pop(key, None))
        # If one of the clients disconnects, the others must still get it.
        return cast(Value, await asyncio.shield(task))

    async def close(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _poll(self) -> None:
        self._seqs = {}
        while self._waiting:
            try:
                changed = await run_in_threadpool(self.changed, frozenset(self._waiting))
            except TinkerGymError as error:  # A locked or full database; clients continue to wait.
                _log.warning("cannot query events: %s", error)
                changed = set()
            self._looks += 1
            for job_id in changed:
                for news in self._waiting.get(job_id, ()):
                    news.set()
            await asyncio.sleep(self._poll_seconds)

    def changed(self, watched: frozenset[str]) -> set[str]:
        """Return the watched jobs with events since the last look, and those that were not watched then."""
        commits = self._store.commits()
        if commits is not None and commits == self._commits and watched <= self._seqs.keys():
            self._quiet_looks += 1
            if self._quiet_looks < _LOOKS_WITHOUT_NEWS:
                return set()
        self._commits, self._quiet_looks = commits, 0
        # By the job's own count: a number over all jobs may be taken before another and committed after it.
        found = self._store.last_seqs(watched)
        before, self._seqs = self._seqs, {job_id: found.get(job_id, 0) for job_id in watched}
        return {job_id for job_id in watched if before.get(job_id) != self._seqs[job_id]}
