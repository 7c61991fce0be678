"""A pool's engine with engine hosts, in one process, over real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.responses import Response

from backend.engines.protocol import SamplingEngine
from backend.engines.spread.orders import EngineJoins, WantedPieces
from backend.engines.spread.spread_engine import SpreadEngine
from backend.engines.spread.weight_file import Piece
from backend.engines.spread.weight_pull import WeightPull
from backend.network.worker_calls import WorkerAddress, WorkerCalls
from backend.worker_url import any_port, unix_url
from backend.workers.engine_endpoint import EngineEndpoint, HostedEngine
from backend.workers.worker_server import WorkerServer, read_body

TOKEN = "secret"
CHUNK = 1 << 16
"""The most bytes that a host fetches at a time."""


class Source:
    """What a pool's endpoint serves to engine hosts: `/weights`."""

    def __init__(self, read: Callable[[WantedPieces], bytes]) -> None:
        self.read = read
        self.dead = False
        self.server = WorkerServer("source", any_port(), TOKEN, {("POST", "/weights"): self._weights})

    @property
    def address(self) -> WorkerAddress:
        return WorkerAddress(self.server.url, TOKEN)

    async def _weights(self, request) -> Response:
        wanted = read_body(WantedPieces, await request.body())
        data = await asyncio.to_thread(self.read, wanted)
        if self.dead:  # As after `kill -9`: the connections break in the middle of a call.
            for connection in list(self.server._server.server_state.connections):
                connection.transport.abort()
        return Response(data)

    def close(self) -> None:
        self.server.close()


class Host:
    """An engine host."""

    def __init__(self, name: str, engine: SamplingEngine, source: WorkerAddress, folder: Path) -> None:
        self.name, self.engine, self.source = name, engine, source
        self._calls = WorkerCalls()
        self.pull = WeightPull(self._fetch, folder, chunk_bytes=CHUNK)
        self.hosted = HostedEngine(engine, self.pull)
        self._url = unix_url(folder / f"{name}.sock")
        self.endpoint: EngineEndpoint | None = None

    @property
    def joins(self) -> EngineJoins:
        if self.endpoint is None:
            self.endpoint = EngineEndpoint(self.hosted, self._url, TOKEN)
        return EngineJoins(engine_id=self.name, url=self.endpoint.url, token=TOKEN, held=self.hosted.held)

    def close(self) -> None:
        if self.endpoint is not None:
            self.endpoint.close()
        self.engine.close()
        self._calls.close()

    def _fetch(self, pieces: Sequence[Piece]) -> bytes:
        body = WantedPieces(pieces=list(pieces)).model_dump_json()
        return self._calls.post(self.source, "/weights", body, silence_seconds=120.0)


class Fleet:
    """A pool's engine, its source of weights and its hosts."""

    def __init__(self, own: SamplingEngine, folder: Path, *, silent_after: float = 60.0, **options) -> None:
        self.folder = folder
        self.engine = SpreadEngine(own, folder=folder, silent_after=silent_after, **options)
        self.source = Source(self.engine.read_weights)
        self.hosts: list[Host] = []

    def add(self, engine: SamplingEngine) -> Host:
        """Start an engine host, and let it join once it holds what is published."""
        host = Host(f"engine-{len(self.hosts)}", engine, self.source.address, self.folder)
        self.hosts.append(host)
        self.engine.join(host.joins)
        return host

    def wait_until_held(self, policy: str, version: int) -> None:
        """Return when all hosts hold this version."""
        assert self.engine.wait_until_held(policy, version, 120.0)

    def close(self) -> None:
        self.engine.close()
        for host in self.hosts:
            host.close()
        self.source.close()
