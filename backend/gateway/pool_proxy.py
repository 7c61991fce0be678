"""HTTP to the pools. Bytes pass through unchanged.

With aiohttp instead of the SDK's httpx, which checks all of its connections before each request: with 64
callers this was 40 % of the gateway's computing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from backend.network.worker_calls import KEEP_ALIVE_SECONDS, open_session, refusal
from backend.store.store import PoolRecord
from tinkergym.errors import ServiceUnavailableError

Bytes = bytes | bytearray

_SAMPLE_SILENCE_SECONDS = 600.0
"""In lockstep a request waits for all others of its step."""
_CALL_SECONDS = 90.0
"""Longer than the longest wait of a `LeaseRequest`."""
_CONNECT_SECONDS = 5.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolStream:
    """A response that arrives in chunks."""

    chunks: AsyncIterator[bytes]
    """Its bytes. They end early if the pool dies: the header was sent by then, so it cannot become an
    error."""
    break_off: Callable[[], None]
    """Ends the chunks, and the pool's work for them."""


class PoolProxy:
    """Connections to pools, kept open. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[str, _Session] = {}

    async def call(self, pool: PoolRecord, path: str, body: Bytes, params: Mapping[str, str]) -> bytes:
        """Post a body and return the body of the response.

        Raises:
            ServiceUnavailableError: The pool does not respond; the request may be repeated.
            TinkerGymError: The pool's error.
        """
        async with self._posted(pool, path, body, params, _CALL_SECONDS) as response:
            return await response.read()

    @asynccontextmanager
    async def stream(self, pool: PoolRecord, path: str, body: bytes) -> AsyncIterator[PoolStream]:
        """Post a body and yield the response's bytes as they arrive; otherwise as `call`."""
        async with self._posted(pool, path, body, {}, _SAMPLE_SILENCE_SECONDS) as response:
            yield PoolStream(_until_it_breaks(response, pool), response.close)

    @asynccontextmanager
    async def _posted(
        self,
        pool: PoolRecord,
        path: str,
        body: bytes | bytearray,
        params: Mapping[str, str],
        silence_seconds: float,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_SECONDS, sock_read=silence_seconds)
        headers = {"Authorization": f"Bearer {pool.token}", "Content-Type": "application/json"}
        try:
            async with (
                self._session(pool.url) as session,
                session.post(path, data=body, params=params, headers=headers, timeout=timeout) as response,
            ):
                if response.status >= 400:
                    raise refusal(response.status, await response.read())
                yield response
        except aiohttp.ClientError as error:
            raise ServiceUnavailableError(
                f"the worker of model {pool.model!r} does not respond ({type(error).__name__})",
                hint="it is being restarted; try again",
            ) from error

    async def close(self) -> None:
        """Close all connections."""
        for known in self._sessions.values():
            await known.session.close()
        self._sessions.clear()

    @property
    def urls(self) -> list[str]:
        """The URLs of the pools that it keeps connections to."""
        return list(self._sessions)

    @asynccontextmanager
    async def _session(self, url: str) -> AsyncIterator[aiohttp.ClientSession]:
        known = self._sessions.get(url)
        if known is None:
            idle = self._idle()  # When a new pool appears, drop sessions of ended ones.
            known = self._sessions[url] = _Session(open_session(url))
            for session in idle:
                await session.close()
        known.calls += 1
        try:
            yield known.session
        finally:
            known.calls -= 1
            known.used_at = self._clock()

    def _idle(self) -> list[aiohttp.ClientSession]:
        """Drop sessions without open connections; one that is still needed is opened again."""
        before = self._clock() - KEEP_ALIVE_SECONDS
        idle = [url for url, known in self._sessions.items() if not known.calls and known.used_at < before]
        return [self._sessions.pop(url).session for url in idle]


@dataclass(slots=True)
class _Session:
    """The connections to one pool."""

    session: aiohttp.ClientSession
    calls: int = 0
    """Calls in progress."""
    used_at: float = float("inf")
    """When the last call ended."""


async def _until_it_breaks(response: aiohttp.ClientResponse, pool: PoolRecord) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except aiohttp.ClientError as error:
        _log.warning("a response of pool %s broke off: %s", pool.pool_id, type(error).__name__)
