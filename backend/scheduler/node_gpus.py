"""The GPUs of a cluster's nodes. The service holds those that are free, until it stops.

Its plan divides them between models by memory, which Ray cannot: a fraction of a GPU has no number there, and
two of them would share one GPU while others are free. What other programs hold when a node joins is taken
when they give it back. Knows nothing of Ray itself.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Protocol

from backend.processes.machine_gpus import READ_SECONDS

_log = logging.getLogger(__name__)


class Holders(Protocol):
    """What holds GPUs; see `ray_gpus.GpuHolders`. Several of a node are numbered from 0."""

    def free(self, node_id: str) -> int:
        """Return how many GPUs of a node nobody holds."""
        ...

    def found(self, node_id: str, number: int) -> Future[dict[str, int] | None] | None:
        """Ask one that was started before; None if there is none."""
        ...

    def hold(self, node_id: str, number: int, gpus: int) -> Future[dict[str, int] | None]:
        """Hold GPUs, and return their memory in bytes, by name; None if the node could not tell."""
        ...

    def give_back(self, node_id: str, number: int) -> None:
        """Hold them no longer."""
        ...


class NodeGpus:
    """Which GPUs are held. Those of a node keep their order, and later ones are added at its end."""

    def __init__(self, holders: Holders, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._holders, self._monotonic = holders, monotonic
        self._asked: dict[str, Future[dict[str, int] | None]] = {}
        """The holder that has not answered yet, by node."""
        self._answered: dict[str, int] = {}
        """How many holders have, by node."""
        self._known: dict[str, dict[str, int]] = {}
        self._gpus: dict[str, int] = {}
        """How many GPUs each node has."""
        self._useless: set[str] = set()
        """Nodes whose GPUs are held, but did not tell their memory."""
        self._failing: dict[str, float] = {}
        """When nodes were asked last, of those that could not tell then which GPUs they have."""

    def are_known(self, node_id: str) -> bool:
        """Whether a node said which GPUs it has."""
        return node_id in self._known

    def of(self, node_id: str) -> dict[str, int]:
        """Return the memory of a node's GPUs in bytes, by name; empty as long as it is not known."""
        return self._known.get(node_id, {})

    def of_others(self, node_id: str) -> int:
        """Return how many GPUs of a node others have."""
        return 0 if node_id in self._useless else self._gpus.get(node_id, 0) - len(self.of(node_id))

    def look(self, nodes: Mapping[str, int]) -> None:
        """Hold GPUs that are free, and forget those of nodes that left.

        Args:
            nodes: The number of GPUs of each node that may be used and has some.
        """
        self._gpus = dict(nodes)
        self._useless &= nodes.keys()
        for node_id in self._answered.keys() - nodes.keys():
            for known in (self._asked, self._answered, self._known, self._failing):
                known.pop(node_id, None)
        for node_id, gpus in nodes.items():
            number = self._answered.setdefault(node_id, 0)
            rests = self._monotonic() - self._failing.get(node_id, -READ_SECONDS) < READ_SECONDS
            if node_id not in self._asked and len(self.of(node_id)) < gpus and not rests:
                self._hold(node_id, number)
        for node_id, promise in list(self._asked.items()):
            if promise.done():
                del self._asked[node_id]
                self._note(node_id, promise)

    def _hold(self, node_id: str, number: int) -> None:
        found = self._holders.found(node_id, number)
        if found is None and (free := self._holders.free(node_id)):
            found = self._holders.hold(node_id, number, free)
        if found is None:  # Others have them all; asked again at the next look.
            self._known.setdefault(node_id, {})
        else:
            self._asked[node_id] = found

    def _note(self, node_id: str, promise: Future[dict[str, int] | None]) -> None:
        number = self._answered[node_id]
        try:
            gpus = promise.result()
        except Exception as error:
            _log.warning("the GPUs of node %s cannot be held: %s", node_id, error)
            self._holders.give_back(node_id, number)
            return
        if gpus is None:  # The holder is asked again. Until then its GPUs count as others'.
            self._known.setdefault(node_id, {})
            if node_id not in self._failing:
                _log.warning("nvidia-smi failed on node %s: its GPUs are not used until it answers", node_id)
            self._failing[node_id] = self._monotonic()
            return
        self._failing.pop(node_id, None)
        # GPUs that others give back later are taken by a further holder, with the next number.
        self._answered[node_id] = number + 1
        self._known[node_id] = self.of(node_id) | gpus
        if not gpus:  # Its CPUs are.
            self._useless.add(node_id)
            _log.warning("the GPUs of node %s are not used, their memory is unknown: set gpu_bytes", node_id)
