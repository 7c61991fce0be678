"""An environment worker: plays the episodes of installed packs for one pool, over the pool's Unix socket.

The same `RolloutWorker` as in a client's process; only the address differs. Knows neither Ray nor torch.
"""

from __future__ import annotations

import threading

from tinkergym.loop.rollout import RolloutWorker
from tinkergym.registration import load_packs, make_environment
from tinkergym.remote.rollout_transport import HttpRolloutTransport, Routes
from tinkergym.remote.transport import Connection


def run_env_worker(
    *,
    socket_path: str,
    token: str,
    worker_id: str,
    max_episodes: int,
    stop: threading.Event | None = None,
) -> None:
    """Lease, play and submit episodes until `stop` is set; a pool that does not answer yet is waited for."""
    load_packs()
    connection = Connection(f"unix://{socket_path}", token=token)
    worker = RolloutWorker(
        HttpRolloutTransport(connection, Routes.of_pool()),
        make_env=make_environment,
        max_episodes=max_episodes,
        worker_id=worker_id,
    )
    worker.run(stop or threading.Event())
