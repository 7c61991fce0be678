"""100 event streams of one job: a process that reads them, and what they cost the steps of a training.

Their reader is a process of its own, so that it takes no time from whoever measures.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import statistics
from collections.abc import Iterator
from multiprocessing.connection import Connection

import httpx

import tinkergym as tg
from benchmarks.common import service

STREAMS = 100
ROUNDS = 3
_STEPS = 16
_WARM_UP_STEPS = 4


class EventStreams:
    """Reads a job's events as often as there are streams."""

    def __init__(self, connection: Connection) -> None:
        """Use the connection to the process that reads."""
        self._connection = connection

    def open(self, job_id: str, *, after: int = 0, events: int | None = None) -> None:
        """Open all streams of a job, and return when they are open.

        Args:
            job_id: The job.
            after: The event after which each begins.
            events: After so many it ends; None means with the job.

        Raises:
            RuntimeError: One of them was refused.
        """
        self._connection.send((job_id, after, events))
        refused = [status for status in self._connection.recv() if status != 200]
        if refused:
            raise RuntimeError(f"{len(refused)} of {STREAMS} streams were refused: status {refused[0]}")

    def read(self) -> int:
        """Return how many events arrived in all streams together, when they have ended."""
        return sum(self._connection.recv())


@contextlib.contextmanager
def event_streams(url: str, key: str) -> Iterator[EventStreams]:
    """Start the process that reads streams, and yield it."""
    context = multiprocessing.get_context("spawn")
    own, its = context.Pipe()
    process = context.Process(target=_read_jobs, args=(url, key, its), daemon=True)
    process.start()
    its.close()  # so that its end is noticed if the process dies
    try:
        yield EventStreams(own)
    finally:
        process.terminate()
        process.join()


def _read_jobs(url: str, key: str, connection: Connection) -> None:
    while True:
        job_id, after, events = connection.recv()
        asyncio.run(_read_job(url, key, f"/v1/jobs/{job_id}/events?after={after}", events, connection))


async def _read_job(url: str, key: str, path: str, events: int | None, connection: Connection) -> None:
    statuses: list[int] = []

    async def read() -> int:
        seen = 0
        async with client.stream("GET", path) as response:
            statuses.append(response.status_code)
            if len(statuses) == STREAMS:
                connection.send(statuses)
            async for line in response.aiter_lines():
                seen += line.startswith("id: ")
                if seen == events:
                    break
        return seen

    async with httpx.AsyncClient(
        base_url=url,
        headers={"Authorization": f"Bearer {key}"},
        timeout=httpx.Timeout(60, pool=None),
        limits=httpx.Limits(max_connections=None),
        trust_env=False,
    ) as client:
        connection.send(await asyncio.gather(*(read() for _ in range(STREAMS))))


def step_seconds() -> dict[str, list[float]]:
    """Return the median step times of jobs: without streams, with them, and without them again.

    In turn, so that the first and the last of each three say what chance alone does.
    """
    found: dict[str, list[float]] = {"before": [], "with streams": [], "after": []}
    with (
        service(None, 'preload=["nano"]') as running,
        tg.Client(running.url, running.api_key) as client,
        event_streams(running.url, running.api_key) as streams,
    ):
        _train(client, None)  # warms up
        for _ in range(ROUNDS):
            for name, seconds in found.items():
                seconds.append(_train(client, streams if name == "with streams" else None))
    return found


def _train(client: tg.Client, streams: EventStreams | None) -> float:
    job = client.train(
        "board/TicTacToeVs-v0",
        model="nano",
        algorithm=tg.GRPO(group_size=8, groups_per_step=4, learning_rate=1e-3),
        adapter=tg.LoRA(rank=8),
        steps=_STEPS,
    )
    if streams is not None:
        streams.open(job.id)
    job.wait(progress=False, warn=False)
    if streams is not None and (arrived := streams.read()) < _STEPS * STREAMS:
        raise RuntimeError(f"only {arrived} events of {_STEPS} steps arrived in {STREAMS} streams")
    return statistics.median(step.step_seconds for step in job.steps()[_WARM_UP_STEPS:])
