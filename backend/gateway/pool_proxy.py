"""HTTP to the pools. Bytes go through as they are.

By aiohttp and not by the SDK's httpx, which looks at all of its connections before it sends a request: with
64 callers that was 40 % of what the gateway computed.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from backend.store.store import PoolRecord
from backend.worker_url import socket_path
from tinkergym.errors import InternalServiceError, ServiceUnavailableError, TinkerGymError, from_wire

Bytes = bytes | bytearray

_SAMPLE_SILENCE_SECONDS = 600.0
"""In lockstep a request waits for all others of its step."""
_CALL_SECONDS = 90.0
"""Above the longest wait that a `LeaseRequest` may ask for."""
_CONNECT_SECONDS = 5.0
_KEEP_ALIVE_SECONDS = 30.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolStream:
    """An answer that arrives bit by bit."""

    chunks: AsyncIterator[bytes]
    """Its bytes. They end early if the pool dies: the head was sent by then, so it cannot be an error."""
    break_off: Callable[[], None]
    """Ends the chunks, and the pool's work for them."""


class PoolProxy:
    """Connections to pools, kept open. Belongs to one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[str, _Session] = {}

    async def call(self, pool: PoolRecord, path: str, body: Bytes, params: Mapping[str, str]) -> bytes:
        """Post a body and return the answer's.

        Raises:
            ServiceUnavailableError: The pool does not answer; the request may be repeated.
            TinkerGymError: What the pool answered.
        """
        async with self._posted(pool, path, body, params, _CALL_SECONDS) as response:
            return await response.read()

    @asynccontextmanager
    async def stream(self, pool: PoolRecord, path: str, body: bytes) -> AsyncIterator[PoolStream]:
        """Post a body and hand out the answer's bytes as they arrive; otherwise as `call`."""
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
                    raise _refusal(response.status, await response.read())
                yield response
        except aiohttp.ClientError as error:
            raise ServiceUnavailableError(
                f"the worker of model {pool.model!r} does not answer ({type(error).__name__})",
                hint="it is being started again; try again",
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
            idle = self._idle()  # a new pool is a good moment to forget those that ended
            known = self._sessions[url] = _Session(_session_with(url))
            for session in idle:
                await session.close()
        known.calls += 1
        try:
            yield known.session
        finally:
            known.calls -= 1
            known.used_at = self._clock()

    def _idle(self) -> list[aiohttp.ClientSession]:
        """Forget sessions that hold no connection any more; one that is still needed is opened again."""
        before = self._clock() - _KEEP_ALIVE_SECONDS
        idle = [url for url, known in self._sessions.items() if not known.calls and known.used_at < before]
        return [self._sessions.pop(url).session for url in idle]


@dataclass(slots=True)
class _Session:
    """The connections to one pool."""

    session: aiohttp.ClientSession
    calls: int = 0
    """Under way."""
    used_at: float = float("inf")
    """When the last call ended."""


def _session_with(url: str) -> aiohttp.ClientSession:
    # No cap: every waiting worker holds one connection, and one must never wait for another's answer.
    path = socket_path(url)
    connector: aiohttp.BaseConnector = (
        aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS)
        if path is None
        else aiohttp.UnixConnector(str(path), limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS)
    )
    base = url if path is None else "http://pool"
    return aiohttp.ClientSession(base, connector=connector, cookie_jar=aiohttp.DummyCookieJar())


async def _until_it_breaks(response: aiohttp.ClientResponse, pool: PoolRecord) -> AsyncIterator[bytes]:
    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except aiohttp.ClientError as error:
        _log.warning("an answer of pool %s broke off: %s", pool.pool_id, type(error).__name__)


def _refusal(status: int, body: bytes) -> TinkerGymError:
    try:
        error = from_wire(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return InternalServiceError(f"the model's worker answered with HTTP status {status}")
    if status == 401:
        # The gateway's token, not the client's key: a pool of the same socket that started anew.
        return ServiceUnavailableError("the model's worker has just been started again", hint="try again")
    return error
