"""Ranks of a data-parallel group as Ray actors of the pool worker that they train for.

Ray starts them in the resources of their pool, reports their death and ends them with their pool. A group and
its ranks communicate, including whole models, over TCP on their nodes' addresses, because we do not use Ray's
object store; ranks that are all on the pool's node, through its loopback interface.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from backend.errors import RankLostError
from backend.learner.parallel.rank import RankOptions
from backend.learner.parallel.rank_process import RankProcess
from backend.learner.parallel.rank_server import serve_rank
from backend.planning.pool_place import ProcessPlace
from backend.processes.children import die_with_parent
from backend.processes.machine_gpus import VISIBLE
from backend.scheduler.host_log import log_to_host
from backend.scheduler.ray_nodes import own_address
from backend.worker_url import LOOPBACK

_log = logging.getLogger(__name__)
_START_SECONDS = 120.0
_ENDED_SECONDS = 2.0


class RankActor:
    """Runs in an actor: one rank."""

    def __init__(self, gpus: Sequence[str]) -> None:
        """Run where Ray placed it, on these of its node's GPUs."""
        die_with_parent()
        log_to_host()
        if gpus:  # Before torch looks.
            os.environ[VISIBLE] = ",".join(gpus)
        self._listener: Listener | None = None

    def host(self) -> str:
        """Return its node's address."""
        return own_address()

    def listen(self, host: str, key: bytes) -> tuple[tuple[str, int], int]:
        """Listen for a group that has the key; returns where, and the process's id."""
        self._listener = Listener((host, 0), "AF_INET", backlog=1, authkey=key)
        return self._listener.address, os.getpid()

    def free_port(self, host: str) -> int:
        """Return a port of this node on which nothing listens."""
        with socket.create_server((host, 0)) as server:
            return int(server.getsockname()[1])

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
        with contextlib.suppress(Exception):
            ray.kill(self._actor, no_restart=True)

    def join(self, seconds: float) -> None:
        """See `RankProcess`."""
        with contextlib.suppress(Exception):
            ray.wait([self._served], timeout=seconds)
        self.kill()  # An actor stays until it is told to end.


def ray_ranks(places: Sequence[ProcessPlace], options: RankOptions) -> Sequence[RankProcess]:
    """Start the ranks as actors in the placement group of this pool; see `StartRanks`.

    Args:
        places: Of each rank.
        options: What they have in common.

    Raises:
        RankLostError: Ray could not start one.
    """
    key = secrets.token_bytes(32)
    actors = [_rank(place) for place in places]
    # Each connects in a thread, because the other side's handshake has no time limit.
    with ThreadPoolExecutor(1) as connecting:
        try:
            hosts = ray.get([actor.host.remote() for actor in actors], timeout=_START_SECONDS)
            meeting = options.meeting
            if set(hosts) == {own_address()}:
                hosts = [LOOPBACK] * len(hosts)
            else:
                # If another program takes the port before the ranks meet there, this start fails and is
                # repeated.
                port = ray.get(actors[0].free_port.remote(hosts[0]), timeout=_START_SECONDS)
                meeting = f"tcp://{hosts[0]}:{port}"
            listening = [actor.listen.remote(host, key) for actor, host in zip(actors, hosts, strict=True)]
            listeners = ray.get(listening, timeout=_START_SECONDS)
            if places[0].gpus and options.device == "cuda":
                options = replace(options, device="cuda:0")  # Each sees its own only.
            met = [replace(options, meeting=meeting, host=host) for host in hosts]
            served = [actor.serve.remote(*each) for actor, each in zip(actors, enumerate(met), strict=True)]
            pipes = [
                connecting.submit(Client, address, "AF_INET", authkey=key).result(_START_SECONDS)
                for address, _ in listeners
            ]
        except (ray.exceptions.RayError, OSError, EOFError, AuthenticationError) as error:
            for actor in actors:
                with contextlib.suppress(Exception):
                    ray.kill(actor, no_restart=True)
            _log.warning("Ray could not start the ranks: %s", error)
            raise RankLostError(
                f"Ray could not start the {options.ranks} ranks of a learner: {type(error).__name__}",
                hint="see logs/scheduler.log in data_dir",
            ) from error
    pids = [pid for _, pid in listeners]
    return [RayRank(*each) for each in zip(actors, pids, pipes, served, strict=True)]


def _rank(place: ProcessPlace) -> Any:
    """Start a rank in its bundle: the first writes files for the pool, and is on its node."""
    group = ray.util.get_current_placement_group()
    assert group is not None, "a pool runs in its placement group"
    strategy = PlacementGroupSchedulingStrategy(
        placement_group=group, placement_group_bundle_index=place.bundle
    )
    actor = ray.remote(max_restarts=0)(RankActor)
    return actor.options(num_cpus=place.cpus, scheduling_strategy=strategy).remote(place.gpus)
