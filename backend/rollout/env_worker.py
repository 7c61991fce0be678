"""An environment worker: plays the episodes of installed packs for one pool, over the pool's Unix socket.

The same `RolloutWorker` as in a client's process; only the address differs. Knows neither Ray nor torch.
"""

from __future__ import annotations

import threading
from pathlib import Path

from tinkergym.loop.host_pool import MakeEnv
from tinkergym.loop.rollout import RolloutWorker
from tinkergym.registration import load_packs, make_environment
from tinkergym.remote.rollout_transport import HttpRolloutTransport, Routes
from tinkergym.remote.transport import Connection

_LOOK_SECONDS = 0.05


def run_env_worker(
    *,
    socket_path: str,
    token: str,
    worker_id: str,
    max_episodes: int,
    make_env: MakeEnv = make_environment,
    stop: threading.Event | None = None,
) -> None:
    """Lease, play and submit episodes until `stop` is set; a pool that does not answer yet is waited for."""
    stop = stop or threading.Event()
    load_packs()
    # A pool that is still loading its model has no socket. Looking for the file finds it at once; the
    # worker's own patience with a service that is away would cost seconds.
    while not Path(socket_path).exists():
        if stop.wait(_LOOK_SECONDS):
            return
    connection = Connection(f"unix://{socket_path}", token=token)
    worker = RolloutWorker(
        HttpRolloutTransport(connection, Routes.of_pool()),
        make_env=make_env,
        max_episodes=max_episodes,
        worker_id=worker_id,
    )
    worker.run(stop)
