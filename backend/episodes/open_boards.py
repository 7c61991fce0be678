"""The boards of all open jobs of a process, and the condition that every change of them is made under."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from backend.episodes.job_board import JobBoard

_LOOK_SECONDS = 0.25
"""How often waiting checks the clock while there are boards, because leases expire silently."""


class OpenBoards:
    """Boards by name. Hold `changed` for every method and every attribute of a board.

    One condition serves all of them, because an environment worker waits for an episode of any job. Who
    releases it, to wait or to store, asks afterwards whether the board is still open.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without boards; `clock` is in seconds."""
        self.clock = clock
        self.changed = threading.Condition()
        self.by_name: dict[str, JobBoard] = {}
        self.shut = False
        """Whether all waiting should end."""

    def of_job(self, job_id: str) -> list[JobBoard]:
        """Return the boards of a job."""
        return [board for board in self.by_name.values() if board.job_id == job_id]

    def of_owner(self, owner: str) -> list[JobBoard]:
        """Return the boards that a worker serves which serves any job of this owner."""
        return [one for one in self.by_name.values() if one.for_server_workers and one.owner == owner]

    def is_open(self, board: JobBoard) -> bool:
        """Whether this very board is still open."""
        return self.by_name.get(board.name) is board

    def expire(self, board: JobBoard) -> None:
        """Open the board's episodes whose lease has expired."""
        if board.board.expire(self.clock()):
            self.changed.notify_all()

    def wait(self, seconds: float) -> None:
        """Wait for a change, at most `seconds`, and not longer than a lease may expire unnoticed."""
        self.changed.wait(min(seconds, _LOOK_SECONDS) if self.by_name else seconds)

    def wait_for(self, board: JobBoard, happened: Callable[[], bool]) -> bool:
        """Wait until it has happened; False if the board is closed before that."""
        self.changed.wait_for(lambda: happened() or self.shut or not self.is_open(board))
        return happened()
