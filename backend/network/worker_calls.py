"""Calls from one worker to another, by URL and token, from ordinary threads.

One thread with an event loop keeps the connections; see `worker_url` for the kinds of URLs.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp

from backend.lines_response import whole_lines
from backend.worker_url import socket_path
from tinkergym.errors import (
    InternalServiceError,
    ServiceUnavailableError,
    TinkerGymError,
    from_wire,
)

_Result = TypeVar("_Result")
_CONNECT_SECONDS = 5.0
KEEP_ALIVE_SECONDS = 30.0
"""How long an unused connection stays open."""


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """Where a worker listens, and the token that it requires."""

    url: str
    token: str

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a call."""
        return {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}


def open_session(url: str) -> aiohttp.ClientSession:
    """Return a session for one worker; it belongs to the running event loop."""
    # No limit: every waiting caller holds one connection, and one must never wait for another's response.
    path = socket_path(url)
    connector: aiohttp.BaseConnector = (
        aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS)
        if path is None
        else aiohttp.UnixConnector(str(path), limit=0, keepalive_timeout=KEEP_ALIVE_SECONDS)
    )
    base = url if path is None else "http://worker"
    return aiohttp.ClientSession(base, connector=connector, cookie_jar=aiohttp.DummyCookieJar())


def refusal(status: int, body: bytes) -> TinkerGymError:
    """Return the error of a worker's response."""
    try:
        error = from_wire(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return InternalServiceError(f"the model's worker returned HTTP status {status}")
    if status == 401:
        # The service's token, not a client's key: a restarted worker on the same socket.
        return ServiceUnavailableError("the model's worker has just been restarted", hint="try again")
    return error


class WorkerCalls:
    """Connections to workers, kept open in one thread."""

    def __init__(self) -> None:
        """Start the thread."""
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._closed = False
        self._sessions: dict[str, aiohttp.ClientSession] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, name="worker-calls", daemon=True)
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        """Run a coroutine in the thread; cancelling the result cancels it.

        After `close` the result is ServiceUnavailableError.
        """
        with self._lock:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(work, self._loop)
        work.close()
        refused: Future[_Result] = Future()
        refused.set_exception(ServiceUnavailableError("this worker is stopping"))
        return refused

    def post(self, worker: WorkerAddress, path: str, body: str, *, silence_seconds: float) -> bytes:
        """Post JSON and return the body of the response; as `posted`, not from the thread itself."""
        return self.start(self.posted(worker, path, body, silence_seconds=silence_seconds)).result()

    async def posted(self, worker: WorkerAddress, path: str, body: str, *, silence_seconds: float) -> bytes:
        """Post JSON and return the body of the response.

        Raises:
            ServiceUnavailableError: The worker does not respond; the call may be repeated.
            TinkerGymError: The worker's error.
        """
        async with self._response(worker, path, body, silence_seconds) as response:
            return await response.read()

    async def lines(
        self, worker: WorkerAddress, path: str, body: str, *, silence_seconds: float
    ) -> AsyncIterator[bytes]:
        """Post JSON and yield the lines of the response as they arrive; as `posted`."""
        async with self._response(worker, path, body, silence_seconds) as response:
            async for lines in whole_lines(response.content.iter_any()):
                for line in lines.splitlines():
                    yield line

    async def forget(self, worker: WorkerAddress) -> None:
        """Close the connections to a worker that is gone."""
        session = self._sessions.pop(worker.url, None)
        if session is not None:
            await session.close()

    def close(self) -> None:
        """Cancel what runs, and end the thread."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            # Under the lock: then it is the loop's last task, and sees all others.
            closing = asyncio.run_coroutine_threadsafe(self._close(), self._loop)
        closing.result(timeout=10.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5.0)
        self._loop.close()

    async def _close(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    @asynccontextmanager
    async def _response(
        self, worker: WorkerAddress, path: str, body: str, silence_seconds: float
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        session = self._sessions.get(worker.url)
        if session is None:
            session = self._sessions[worker.url] = open_session(worker.url)
        timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_SECONDS, sock_read=silence_seconds)
        try:
            async with session.post(
                path, data=body.encode(), headers=worker.headers, timeout=timeout
            ) as response:
                if response.status >= 400:
                    raise refusal(response.status, await response.read())
                yield response
        except aiohttp.ClientError as error:
            raise ServiceUnavailableError(
                f"the worker at {worker.url} does not respond ({type(error).__name__})", hint="try again"
            ) from error
