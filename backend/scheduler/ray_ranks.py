"""Ranks of a data-parallel group as Ray actors of the pool worker that they train for.

Ray starts them, tells of their death and ends them with their pool. What a group and its ranks say to each
other, whole models among it, goes through a Unix socket instead, as nothing of ours travels through Ray's
object store.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import tempfile
from collections.abc import Sequence
from multiprocessing import current_process
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from backend.errors import RankLostError
from backend.learner.rank import RankOptions, serve_rank
from backend.learner.rank_process import RankProcess

_log = logging.getLogger(__name__)
_START_SECONDS = 120.0
_ENDED_SECONDS = 2.0


class RankActor:
    """Runs in an actor: one rank."""

    def __init__(self) -> None:
        self._listener: Listener | None = None

    def listen(self, address: str, key: bytes) -> int:
        """Listen on a Unix socket for a group that has the key; returns the process's id."""
        # By this key torch hands over the memory of tensors too, as a process and its children do.
        current_process().authkey = key
        self._listener = Listener(address, "AF_UNIX", backlog=1, authkey=key)
        return os.getpid()

    def serve(self, number: int, options: RankOptions) -> None:
        """Be rank number i for the first that connects, until it goes."""
        assert self._listener is not None
        with self._listener, self._listener.accept() as pipe:
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
        import ray

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
        import ray

        with contextlib.suppress(Exception):
            serving = not ray.wait([self._served], timeout=0)[0]
            ray.kill(self._actor, no_restart=True)
            if serving:  # else it is dead, or waits for nothing
                # Ray asks the process to end; one that waits in a collective does not hear it.
                os.kill(self.pid, signal.SIGKILL)

    def join(self, seconds: float) -> None:
        """See `RankProcess`."""
        import ray

        with contextlib.suppress(Exception):
            ray.wait([self._served], timeout=seconds)
        self.kill()  # an actor stays until it is told to go


def ray_ranks(options: RankOptions) -> Sequence[RankProcess]:
    """Start the ranks as actors; see `StartRanks`.

    Raises:
        RankLostError: Ray could not start one.
    """
    import ray

    key = bytes(current_process().authkey)
    actors = [ray.remote(num_cpus=0, max_restarts=0)(RankActor).remote() for _ in range(options.ranks)]
    ranks: list[RankProcess] = []
    with tempfile.TemporaryDirectory(prefix="tinkergym-rank-") as folder:
        addresses = [str(Path(folder) / str(number)) for number in range(options.ranks)]
        listening = [
            actor.listen.remote(address, key) for actor, address in zip(actors, addresses, strict=True)
        ]
        try:
            pids = ray.get(listening, timeout=_START_SECONDS)
            for number, (actor, address, pid) in enumerate(zip(actors, addresses, pids, strict=True)):
                served = actor.serve.remote(number, options)
                ranks.append(RayRank(actor, pid, Client(address, "AF_UNIX", authkey=key), served))
        except (ray.exceptions.RayError, OSError, EOFError) as error:
            for actor in actors:
                ray.kill(actor, no_restart=True)
            raise RankLostError(
                f"Ray could not start the {options.ranks} ranks of a learner: {error}",
                hint="look into the logs below data_dir for what ended them",
            ) from error
    return ranks
