"""HTTP to the pools' Unix sockets: the gateway's only httpx. Bytes go through as they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from backend.store.store import PoolRecord
from tinkergym.errors import InternalServiceError, ServiceUnavailableError, TinkerGymError, from_wire

_SAMPLE_SILENCE_SECONDS = 600.0
"""In lockstep a request waits for all others of its step."""
_CALL_SECONDS = 90.0
"""Above the longest wait that a `LeaseRequest` may ask for."""


class PoolProxy:
    """Connections to pools, kept open. Belongs to one event loop."""

    def __init__(self) -> None:
        self._clients: dict[str, httpx.AsyncClient] = {}

    async def call(self, pool: PoolRecord, path: str, body: bytes, params: Mapping[str, str]) -> bytes:
        """Post a body and return the answer's.

        Raises:
            ServiceUnavailableError: The pool does not answer; the request may be repeated.
            TinkerGymError: What the pool answered.
        """
        try:
            client = await self._client(pool)
            response = await client.post(
                path, content=body, params=params, headers=_headers(pool), timeout=_CALL_SECONDS
            )
        except httpx.HTTPError as error:
            raise _gone(pool, error) from error
        if response.status_code >= 400:
            raise _refusal(response)
        return response.content

    @asynccontextmanager
    async def stream(self, pool: PoolRecord, path: str, body: bytes) -> AsyncIterator[AsyncIterator[bytes]]:
        """Post a body and hand out the answer's bytes as they arrive; otherwise as `call`."""
        try:
            client = await self._client(pool)
            async with client.stream(
                "POST",
                path,
                content=body,
                headers=_headers(pool),
                timeout=httpx.Timeout(_SAMPLE_SILENCE_SECONDS, connect=5.0),
            ) as response:
                if response.status_code >= 400:
                    await response.aread()
                    raise _refusal(response)
                yield response.aiter_raw()
        except httpx.HTTPError as error:
            raise _gone(pool, error) from error

    async def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()

    @property
    def sockets(self) -> list[str]:
        """The sockets of the pools that it keeps connections to."""
        return list(self._clients)

    async def _client(self, pool: PoolRecord) -> httpx.AsyncClient:
        client = self._clients.get(pool.socket_path)
        if client is None:
            # No cap: every waiting worker holds one connection, and one must never wait for another's answer.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=30.0)
            transport = httpx.AsyncHTTPTransport(uds=pool.socket_path, limits=limits)
            client = httpx.AsyncClient(base_url="http://pool", transport=transport)
            # A new pool is a good moment to forget those that ended: their sockets are removed.
            ended = [path for path in self._clients if not Path(path).exists()]
            gone = [self._clients.pop(path) for path in ended]
            self._clients[pool.socket_path] = client
            for old in gone:
                await old.aclose()
        return client


def _headers(pool: PoolRecord) -> dict[str, str]:
    return {"Authorization": f"Bearer {pool.token}", "Content-Type": "application/json"}


def _gone(pool: PoolRecord, error: httpx.HTTPError) -> ServiceUnavailableError:
    return ServiceUnavailableError(
        f"the worker of model {pool.model!r} does not answer ({type(error).__name__})",
        hint="it is being started again; try again",
    )


def _refusal(response: httpx.Response) -> TinkerGymError:
    try:
        error = from_wire(response.json()["error"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return InternalServiceError(f"the model's worker answered with HTTP status {response.status_code}")
    if response.status_code == 401:
        # The gateway's token, not the client's key: a pool of the same socket that started anew.
        return ServiceUnavailableError("the model's worker has just been started again", hint="try again")
    return error
