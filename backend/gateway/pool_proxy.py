"""HTTP to the pools' Unix sockets. Bytes go through as they are.

By aiohttp and not by the SDK's httpx, which looks at all of its connections before it sends a request: with
64 callers that was 40 % of what the gateway computed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from backend.store.store import PoolRecord
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

    def __init__(self) -> None:
        self._sessions: dict[str, aiohttp.ClientSession] = {}

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
            session = await self._session(pool)
            async with session.post(
                path, data=body, params=params, headers=headers, timeout=timeout
            ) as response:
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
        for session in self._sessions.values():
            await session.close()
        self._sessions.clear()

    @property
    def sockets(self) -> list[str]:
        """The sockets of the pools that it keeps connections to."""
        return list(self._sessions)

    async def _session(self, pool: PoolRecord) -> aiohttp.ClientSession:
        session = self._sessions.get(pool.socket_path)
        if session is None:
            # No cap: every waiting worker holds one connection, and one must never wait for another's answer.
            connector = aiohttp.UnixConnector(
                pool.socket_path, limit=0, keepalive_timeout=_KEEP_ALIVE_SECONDS
            )
            session = aiohttp.ClientSession(
                "http://pool", connector=connector, cookie_jar=aiohttp.DummyCookieJar()
            )
            # A new pool is a good moment to forget those that ended: their sockets are removed.
            ended = [path for path in self._sessions if not Path(path).exists()]
            gone = [self._sessions.pop(path) for path in ended]
            self._sessions[pool.socket_path] = session
            for old in gone:
                await old.close()
        return session


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
