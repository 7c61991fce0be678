"""Limits how many lease requests of a job wait at its pool at once, because a pool has few threads.

Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

_MOST_OF_A_POOL = 96
"""A pool has 128 threads for calls that wait."""
_FEWEST_OF_A_JOB = 4


class WaitingLeases:
    """Requests that wait for episodes, by job; further ones of a job take turns."""

    def __init__(self, jobs_per_pool: int) -> None:
        """Divide a pool's threads evenly among this many jobs."""
        self._most = max(_FEWEST_OF_A_JOB, _MOST_OF_A_POOL // jobs_per_pool)
        self._by_job: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def turn(self, job_id: str) -> asyncio.Semaphore:
        """Return a context manager to hold while the pool is asked."""
        turn = self._by_job.get(job_id)
        if turn is None:
            turn = self._by_job[job_id] = asyncio.Semaphore(self._most)
        return turn
