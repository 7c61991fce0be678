"""Ranks of a data-parallel group as Ray actors of the pool worker that they train for.

Ray starts them, reports their death and ends them with their pool. A group and its ranks communicate,
including whole models, through a Unix socket, because we do not use Ray's object store.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

import ray

from backend.errors import RankLostError
from backend.learner.parallel.rank import RankOptions
from backend.learner.parallel.rank_process import RankProcess
from backend.learner.parallel.rank_server import serve_rank
from backend.processes.children import die_with_parent

_log = logging.getLogger(__name__)
_START_SECONDS = 120.0
_ENDED_SECONDS = 2.0


class RankActor:
    """Runs in an actor: one rank."""

    def __init__(self) -> None:
        die_with_parent()
        self._listener: Listener | None = None

    def listen(self, address: str, key: bytes) -> int:
        """Listen on a Unix socket for a group that has the key; returns the process's id."""
        self._listener = Listener(address, "AF_UNIX", backlog=1, authkey=key)
        return os.getpid()

    def serve(self, number: int, options: RankOptions) -> None:
        """Serve as rank number i for the first connection, until it closes."""
        assert self._listener is not None
        pipe = self._listener.accept()
        self._listener.close()
        with pipe:
            serve_rank(number, options, pipe)


class RayRank:
    """A rank in a Ray actor that dies with the process that started it; implements `RankProcess`."""

    def __init__(self, actor: Any, pid: int, pipe: Connection, served: Any) -> None:
        self.pid = pid
        self.pipe = pipe
        self._actor = actor
        self._served = served

    def how_it_ended(self) -> str:
        """See `RankProcess`."""
        try:
            ray.get(self._served, timeout=_ENDED_SECONDS)
        except ray.exceptions.RayTaskError as error:
            return f"failed with {error.cause!r}"
        except ray.exceptions.RayError as error:
            _log.warning("Ray lost the rank of process %d: %s", self.pid, error)
            return f"ended with process {self.pid}, which crashed or was killed (by hand, or short of memory)"
        return "ended by itself"

    def kill(self) -> None:
        """See `RankProcess`."""
        serving = True
        with contextlib.suppress(Exception):
            serving = not ray.wait([self._served], timeout=0)[0]
        with contextlib.suppress(Exception):
            ray.kill(self._actor, no_restart=True)
        if serving:  # Otherwise it is dead, and its id may belong to another process by now, or it is idle.
            # Ray asks the process to end; one that waits in a collective does not react.
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)

    def join(self, seconds: float) -> None:
        """See `RankProcess`."""
        with contextlib.suppress(Exception):
            ray.wait([self._served], timeout=seconds)
        self.kill()  # An actor stays until it is told to end.


def ray_ranks(options: RankOptions) -> Sequence[RankProcess]:
    """Start the ranks as actors; see `StartRanks`.

    Raises:
        RankLostError: Ray could not start one.
    """
    key = secrets.token_bytes(32)
    actors = [ray.remote(num_cpus=0, max_restarts=0)(RankActor).remote() for _ in range(options.ranks)]
    pids: list[int] = []
    # Each connects in a thread, because the other side's handshake has no time limit.
    with ThreadPoolExecutor(1) as connecting:
        addresses = [str(Path(options.folder) / str(number)) for number in range(options.ranks)]
        listening = [
            actor.listen.remote(address, key) for actor, address in zip(actors, addresses, strict=True)
        ]
        try:
            pids = ray.get(listening, timeout=_START_SECONDS)
            served = [actor.serve.remote(number, options) for number, actor in enumerate(actors)]
            pipes = [
                connecting.submit(Client, address, "AF_UNIX", authkey=key).result(_START_SECONDS)
                for address in addresses
            ]
        except (ray.exceptions.RayError, OSError, EOFError, AuthenticationError) as error:
            for actor in actors:
                with contextlib.suppress(Exception):
                    ray.kill(actor, no_restart=True)
            for pid in pids:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            _log.warning("Ray could not start the ranks: %s", error)
            raise RankLostError(
                f"Ray could not start the {options.ranks} ranks of a learner: {type(error).__name__}",
                hint="see logs/scheduler.log in data_dir",
            ) from error
    return [RayRank(*each) for each in zip(actors, pids, pipes, served, strict=True)]
