"""The interface for running our processes, Ray in the product and a script in tests, and their memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Protocol, Self

from backend.episodes.env_worker_end import WorkerEnd, WorkerRemains
from backend.scheduler.unplaced import Unplaced
from tinkergym.errors import TinkerGymError

OnNode = tuple[str, int]
"""Ray's id of a process's node, and the process's memory there in bytes, with its children."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEnded:
    """A pool's process is gone."""

    pool_id: str
    error: TinkerGymError | None = None
    """Set if it refused to start and would do so again: an unknown model, a broken directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReady:
    """A pool has loaded its model, listens, and has registered its URL and token."""

    pool_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvWorkerEnded:
    """An environment worker's process is gone."""

    pool_id: str
    worker_id: str
    end: WorkerEnd = "died"
    remains: WorkerRemains = field(default_factory=WorkerRemains)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvWorkersSeen:
    """A pool's report about its environment workers."""

    pool_id: str
    owners: Mapping[str, str]
    """Worker -> the owner whose jobs it plays; new ones are missing."""
    wanted: frozenset[str]
    """Owners with a job for environment workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHostEnded:
    """An engine host's process is gone."""

    pool_id: str
    engine_id: str
    error: TinkerGymError | None = None
    """Why it refused to start, if it did."""


Change = PoolEnded | PoolReady | EnvWorkerEnded | EnvWorkersSeen | EngineHostEnded


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A process of the service, by the name under which the next scheduler finds it.

    `pool|POOL|MODEL`, `env_worker|POOL|WORKER` or `engine_host|POOL|NUMBER|ENGINE`.
    """

    kind: Literal["pool", "env_worker", "engine_host"]
    pool_id: str
    worker_id: str
    """The id of an environment worker or an engine host; a pool's is its pool_id."""
    model: str = ""
    """Of a pool."""
    number: int = 0
    """Of an engine host."""

    @classmethod
    def find(cls, name: str) -> Self | None:
        """Parse a name; None if it is not that of such a process. `str` is the inverse."""
        # A model's name comes last, because it may contain the separator.
        match name.split("|", 2):
            case ["pool", pool_id, model]:
                return cls(kind="pool", pool_id=pool_id, worker_id=pool_id, model=model)
            case ["env_worker", pool_id, worker_id]:
                return cls(kind="env_worker", pool_id=pool_id, worker_id=worker_id)
            case ["engine_host", pool_id, tail]:
                number, _, engine_id = tail.partition("|")
                with suppress(ValueError):
                    return cls(kind="engine_host", pool_id=pool_id, worker_id=engine_id, number=int(number))
        return None

    def __str__(self) -> str:
        tails = {
            "pool": self.model,
            "env_worker": self.worker_id,
            "engine_host": f"{self.number}|{self.worker_id}",
        }
        return f"{self.kind}|{self.pool_id}|{tails[self.kind]}"


class ProcessRunner(Protocol):
    """Starts, reaches and ends pools and environment workers. No method waits for a process."""

    def running(self) -> list[Running]:
        """Return what an earlier scheduler left running, and watch it from now on."""
        ...

    def start_pool(self, pool_id: str, model: str, memory_bytes: int) -> None:
        """Start a pool that is expected to take this much memory; `PoolReady` or `PoolEnded` follows."""
        ...

    def waiting(self) -> Mapping[str, Unplaced]:
        """Return why pools that were asked for have no place on a machine yet, by pool."""
        ...

    def ends_for_room(self, idle: Sequence[str]) -> Sequence[str]:
        """Return which of these pools, the longest idle first, to end so that one that waits has a place.

        After each plan once: what ends changes the next one.
        """
        ...

    def impossible(self) -> Mapping[str, str]:
        """Return why models of the settings have no place on the present nodes, whatever else runs there.

        By model, or for jobs that train all of its parameters by `for_all_parameters(model)`.
        """
        ...

    def node_bytes(self) -> Mapping[str, int]:
        """Return the memory that a cluster's nodes have for pools, by node; empty on our own machine."""
        ...

    def node_of(self, pool_id: str) -> str:
        """Return the node on which a cluster placed a pool; empty on our own machine."""
        ...

    def start_env_worker(self, pool_id: str, worker_id: str) -> None:
        """Start an environment worker that plays for a pool, which need not be ready yet."""
        ...

    def engines_of(self, pool_id: str, model: str) -> int:
        """Return how many engines a pool has in all; the first is in its own process."""
        ...

    def start_engine_host(self, pool_id: str, engine_id: str, model: str, number: int) -> None:
        """Start an engine host of a ready pool; `EngineHostEnded` follows when it ends."""
        ...

    def end_engine_host(self, pool_id: str, engine_id: str) -> None:
        """Kill an engine host; `EngineHostEnded` follows."""
        ...

    def has_changes(self) -> bool:
        """Whether `changes` would return any."""
        ...

    def changes(self) -> list[Change]:
        """Return what happened since the last call."""
        ...

    def memory(self) -> Mapping[str, Mapping[str, int]]:
        """Return each pool's memory on each node in bytes, on our own machine under "".

        With its environment workers and engine hosts, as they last reported. Ranks, which hear only their
        pool, are measured by it on our own machine; in a cluster the further ones count as planned.
        """
        ...

    def start_job(self, pool_id: str, job_id: str) -> None:
        """Tell a ready pool to take a job; it acquires the lease itself, and does not report if it cannot."""
        ...

    def env_worker_ended(self, pool_id: str, worker_id: str, end: WorkerEnd, remains: WorkerRemains) -> None:
        """Tell a pool that an environment worker is dead, so that its episodes are issued again at once."""
        ...

    def end_env_worker(self, pool_id: str, worker_id: str) -> None:
        """Kill an environment worker that is no longer needed, without a report."""
        ...

    def end_pool(self, pool_id: str) -> None:
        """Kill a pool with its environment workers and engine hosts."""
        ...


class ProcessMemory:
    """The memory of our processes, as they last said themselves. Asking does not wait for an answer.

    Each process is asked again when it has answered.
    """

    def __init__(self) -> None:
        self._known: dict[str, OnNode] = {}
        self._asked: dict[str, Future[OnNode]] = {}

    def ask(self, processes: Mapping[str, Callable[[], Future[OnNode]]]) -> dict[str, OnNode]:
        """Ask processes by id, and return what those said that have answered before."""
        for who, promise in list(self._asked.items()):
            if promise.done():
                del self._asked[who]
                if promise.exception() is None:
                    self._known[who] = promise.result()
        self._known = {who: said for who, said in self._known.items() if who in processes}
        for who in processes.keys() - self._asked.keys():
            self._asked[who] = processes[who]()
        return dict(self._known)
