"""An environment worker: plays the episodes of installed packs for one pool, at the pool's URL.

The same `RolloutWorker` as in a client's process; only the address differs. Imports neither Ray nor torch.
"""

from __future__ import annotations

import faulthandler
import threading
from collections.abc import Callable
from pathlib import Path

from backend.episodes.env_worker_end import EnvWorkerFiles
from tinkergym.registration.games import make_playable
from tinkergym.remote.rollout_transport import HttpRolloutTransport, Routes
from tinkergym.remote.transport import Connection
from tinkergym.rollout.call_register import CallRegister
from tinkergym.rollout.host_pool import MakeEnv
from tinkergym.rollout.rollout_worker import RolloutWorker
from tinkergym.schema.episodes import SubmitReply, SubmitRequest
from tinkergym.trajectory.trajectory import Trajectory

_RESETS_PER_DEADLINE = 10


class _HidingTransport(HttpRolloutTransport):
    """Submits results without what their owner may not see."""

    def __init__(
        self, connection: Connection, routes: Routes, hide: Callable[[Trajectory], Trajectory]
    ) -> None:
        """Use `connection`, which the caller closes, and apply `hide` to each trajectory."""
        super().__init__(connection, routes)
        self._hide = hide

    def submit(self, request: SubmitRequest) -> SubmitReply:
        """Submit results. When this returns they are durable."""
        results = [
            result.model_copy(update={"trajectories": [self._hide(one) for one in result.trajectories]})
            for result in request.results
        ]
        return super().submit(request.model_copy(update={"results": results}))


def run_env_worker(
    *,
    url: str,
    token: str,
    worker_id: str,
    run_dir: Path,
    max_episodes: int,
    stall_seconds: float,
    make_env: MakeEnv = make_playable,
    hide: Callable[[Trajectory], Trajectory] = lambda trajectory: trajectory,
) -> None:
    """Lease, play and submit episodes, as a rule for as long as this process lives.

    The process is ended when an environment blocks the interpreter for `stall_seconds`, and leaves in
    `run_dir` which episodes were in a call.

    Args:
        url: The pool's URL; see `backend.worker_url`.
        token: The pool's token.
        worker_id: This worker's name.
        run_dir: The folder for files that `EnvWorkerFiles.collect` reads after the worker's death.
        max_episodes: The most episodes at once.
        stall_seconds: How long an environment may block the interpreter.
        make_env: Creates environments.
        hide: Removes from a trajectory what its owner may not see of this machine.
    """
    files = EnvWorkerFiles(run_dir, worker_id)
    files.create()
    end_on_stall(files.trace, stall_seconds)
    connection = Connection(url, token=token)
    worker = RolloutWorker(
        _HidingTransport(connection, Routes.of_pool(worker_id=worker_id), hide),
        make_env=make_env,
        max_episodes=max_episodes,
        register=CallRegister(files.calls),
        worker_id=worker_id,
    )
    worker.run()


def end_on_stall(trace: Path, seconds: float) -> None:
    """End this process with exit status 1 once no Python code of ours has run for `seconds`.

    Then one call of foreign code holds Python's lock, usually in a catastrophic regular expression. No thread
    can run Python code meanwhile, so the watchdog is `faulthandler`'s own, which needs no lock.

    Args:
        trace: The file for the stacks of all threads.
        seconds: How long one call may block the interpreter.
    """
    # Never closed: the watchdog writes to its file descriptor.
    file = trace.open("w", encoding="utf-8")

    def put_off() -> None:
        while True:
            faulthandler.dump_traceback_later(seconds, exit=True, file=file)
            threading.Event().wait(seconds / _RESETS_PER_DEADLINE)

    threading.Thread(target=put_off, name="stall watchdog", daemon=True).start()
