"""A data-parallel group's interface to a rank's process, and the simplest kind: a child process.

A rank and its group communicate through a pipe, however the process was started; the end of the pipe tells
each side that the other is gone.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Protocol

from backend.learner.parallel.rank import RankOptions
from backend.learner.parallel.rank_server import serve_rank


class RankProcess(Protocol):
    """A process that runs `serve_rank`."""

    pipe: Connection
    pid: int

    def how_it_ended(self) -> str:
        """Describe it briefly, after the pipe has ended."""
        ...

    def kill(self) -> None:
        """Kill it now, even if it hangs; does not wait."""
        ...

    def join(self, seconds: float) -> None:
        """Wait until it has ended, and kill it if that takes longer; the pipe is already closed."""
        ...


StartRanks = Callable[[RankOptions], Sequence[RankProcess]]
"""Starts all ranks of a group, without waiting until they have loaded the model."""


class ChildRank:
    """A rank in a child process."""

    def __init__(self, number: int, options: RankOptions) -> None:
        # Spawned: a fork would copy locks of this process's threads in an arbitrary state.
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=_live, args=(number, options, theirs), name=f"rank-{number}", daemon=True
        )
        self._process.start()
        theirs.close()  # so that the pipe ends with the rank
        self.pipe: Connection = ours
        self.pid = self._process.pid or 0

    def how_it_ended(self) -> str:
        """See `RankProcess`."""
        self._process.join(1.0)
        return f"ended with code {self._process.exitcode}"

    def kill(self) -> None:
        """See `RankProcess`."""
        self._process.kill()

    def join(self, seconds: float) -> None:
        """See `RankProcess`."""
        self._process.join(seconds)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def child_ranks(options: RankOptions) -> list[RankProcess]:
    """Start the ranks as child processes; see `StartRanks`."""
    return [ChildRank(number, options) for number in range(options.ranks)]


def _live(number: int, options: RankOptions, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that owns the group
    serve_rank(number, options, pipe)
    # Skips the normal shutdown, which would wait for a collective operation that others have left.
    os._exit(0)
