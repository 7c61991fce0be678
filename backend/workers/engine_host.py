"""An engine host: one more engine of a pool's base model, in a process of its own, on any machine.

It has no learner and no jobs. Its pool sends it requests for tokens, and tells it which versions to hold; it
fetches their weights from the pool. When it is killed, its requests are asked again elsewhere, and the next
engine host begins with the base model and fetches what is published by then.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Sequence

import torch

from backend.config import ServiceConfig
from backend.engines.spread.orders import EngineJoins, WantedPieces
from backend.engines.spread.weight_file import Piece
from backend.engines.spread.weight_pull import WeightPull
from backend.network.worker_calls import WorkerAddress, WorkerCalls
from backend.planning.pool_place import PoolPlace
from backend.processes.memory import resident_bytes
from backend.store.store import Store
from backend.workers.engine_endpoint import EngineEndpoint, HostedEngine
from backend.workers.model_loader import ModelLoader
from tinkergym.errors import TinkerGymError

_log = logging.getLogger(__name__)

_FETCH_SECONDS = 60.0
"""How long a source may be silent while it sends weights."""


class EngineHost:
    """Serves one model's engine to its pool until closed."""

    def __init__(
        self,
        config: ServiceConfig,
        *,
        engine_id: str,
        pool_id: str,
        model: str,
        node: str,
        url: str,
        token: str,
        pool: WorkerAddress,
        place: PoolPlace | None = None,
    ) -> None:
        """Load the model and start listening.

        Args:
            config: The service's settings.
            engine_id: Its name in the store.
            pool_id: The pool that it belongs to.
            model: The pool's model.
            node: The machine that it runs on; empty on a service's only machine.
            url: Where to listen; see `backend.worker_url.listen`.
            token: The token that every request must present.
            pool: Where the pool listens.
            place: The engine's GPUs, as planned; None is this machine, as the settings say.

        Raises:
            TinkerGymError: See `ModelLoader`.
        """
        torch.set_num_threads(config.torch_threads)
        self._config, self._pool, self._token = config, pool, token
        self._engine_id = engine_id
        self._store = Store.open(config.store_url, part="pool").service()
        engine = ModelLoader(config, self._store, model, place=place).load_engine()
        self._calls = WorkerCalls()
        self.hosted = HostedEngine(engine, WeightPull(self._fetch, config.run_dir))
        self._endpoint = EngineEndpoint(self.hosted, url, token)
        self.url = self._endpoint.url
        self._store.register_engine_host(
            engine_id, pool_id=pool_id, model=model, node=node, url=self.url, now=time.time()
        )
        self._stop = threading.Event()
        self._heartbeat = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._heartbeat.start()
        _log.info("engine host %s serves %s with process %d", engine_id, model, os.getpid())

    def close(self) -> None:
        """Stop; what it has not answered is asked again elsewhere."""
        # The heartbeat first: it would join the pool again.
        self._stop.set()
        self._heartbeat.join()
        self._store.remove_engine_host(self._engine_id)
        self._endpoint.close()
        self.hosted.engine.close()
        self._calls.close()

    def _beat(self) -> None:
        me = {"engine_id": self._engine_id, "url": self.url, "token": self._token}
        seconds = self._config.heartbeat_seconds
        while True:
            try:
                joins = EngineJoins.model_validate(me | {"held": self.hosted.held}).model_dump_json()
                self._calls.post(self._pool, "/engines/join", joins, silence_seconds=seconds)
                self._store.touch_engine_host(self._engine_id, time.time(), resident_bytes())
            except TinkerGymError as error:
                # The scheduler ends this process with its pool; until then the pool may come back.
                _log.warning("engine host %s: %s", self._engine_id, error)
            if self._stop.wait(seconds):
                return

    def _fetch(self, pieces: Sequence[Piece]) -> bytes:
        body = WantedPieces(pieces=list(pieces)).model_dump_json()
        return self._calls.post(self._pool, "/weights", body, silence_seconds=_FETCH_SECONDS)
