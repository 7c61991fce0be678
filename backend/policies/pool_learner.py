"""The learner of a pool: in the pool worker itself, or a group of ranks that is replaced when one dies."""

from __future__ import annotations

import threading
from collections.abc import Callable

from backend.learner.learner import Learner
from backend.learner.parallel.data_parallel import DataParallelLearner

AnyLearner = Learner | DataParallelLearner
"""The learner as jobs see it, in either form."""


class PoolLearner:
    """Holds the learner that jobs share.

    A group that lost a rank is broken for all its users: their next call raises, and they resume from their
    checkpoints with the new group that `current` starts.
    """

    def __init__(self, make: Callable[[], AnyLearner]) -> None:
        """Start the first one; `make` starts another."""
        self._make = make
        self._lock = threading.Lock()
        self._learner: AnyLearner | None = make()

    def current(self) -> AnyLearner:
        """Return the learner, replaced if it is broken.

        Raises:
            RankLostError: A rank of the new group ended before it was ready.
        """
        with self._lock:
            learner = self._learner
            if isinstance(learner, DataParallelLearner) and learner.broken:
                self._learner = None
                learner.close()
            if self._learner is None:
                self._learner = self._make()
            return self._learner

    def rest(self) -> None:
        """Let it free memory while no job uses it."""
        with self._lock:
            learner = self._learner
        # Without the lock: a rank may hang, and neither the next job nor `close` should wait for it here.
        if learner is not None:
            learner.rest()

    def close(self) -> None:
        """End its processes, if it has any."""
        with self._lock:
            if isinstance(self._learner, DataParallelLearner):
                self._learner.close()
            self._learner = None
