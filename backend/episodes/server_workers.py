"""Which workers serve any job, whose jobs each of them plays, and which of them are dead.

Pure bookkeeping under the lock of the boards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tinkergym.basics.bounded_dict import BoundedDict

_DEAD_REMEMBERED = 1000
"""The number of remembered dead workers. A call waits for seconds, during which fewer die."""


@dataclass(slots=True)
class ServerWorkers:
    """Workers that serve any job.

    From its first episode to its end a worker plays for one owner: remains of environments in its process
    must not meet another tenant's episodes. After its end it is not served: a call of it may still wait.
    """

    owners: dict[str, str] = field(default_factory=dict)
    """The owner whose jobs a worker plays. New workers are missing."""
    _heard: dict[str, float] = field(default_factory=dict)
    """When each was last heard from."""
    _dead: BoundedDict[str, None] = field(default_factory=lambda: BoundedDict(_DEAD_REMEMBERED))

    def heard_from(self, worker_id: str, now: float) -> None:
        """Record that a worker is alive."""
        self._heard[worker_id] = now

    def forget(self, worker_id: str) -> None:
        """Record that a worker's process has ended; its replacement has another id."""
        self._heard.pop(worker_id, None)
        self.owners.pop(worker_id, None)
        self._dead[worker_id] = None

    def is_dead(self, worker_id: str) -> bool:
        """Whether its process has ended."""
        return worker_id in self._dead

    def silent_since(self, before: float) -> list[str]:
        """Return the workers without a request since then: alive, but hanging."""
        return [worker_id for worker_id, seen in self._heard.items() if seen < before]

    def listed(self, now: float) -> list[tuple[str, str, float]]:
        """Return all workers with their owner, empty for none yet, and the seconds since the last request."""
        return [(name, self.owners.get(name, ""), now - seen) for name, seen in self._heard.items()]

    def choice(self, worker_id: str, owners: Iterable[str]) -> list[str]:
        """Return the owners that a worker may play for, the one with the fewest workers first."""
        if worker_id in self.owners:
            return [self.owners[worker_id]]
        workers = Counter(self.owners.values())
        return sorted(set(owners), key=lambda name: (workers[name], name))
