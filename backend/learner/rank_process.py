"""What a data-parallel group needs of the process that a rank lives in, and the plainest kind: a child.

A rank and its group talk through a pipe, whatever started the process; a pipe's end tells both sides at once
that the other is gone.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Protocol

from backend.learner.rank import RankOptions, serve_rank


class RankProcess(Protocol):
    """A process that answers as `serve_rank` does."""

    pipe: Connection
    pid: int

    def how_it_ended(self) -> str:
        """Say it in some words, after the pipe has ended."""
        ...

    def kill(self) -> None:
        """End it now, also if it hangs; does not wait."""
        ...

    def join(self, seconds: float) -> None:
        """Wait until it is gone, and kill it if that takes longer; the pipe is closed by then."""
        ...


StartRanks = Callable[[RankOptions], Sequence[RankProcess]]
"""Starts all ranks of a group, without waiting until they have loaded the model."""


class ChildRank:
    """A rank in a child of this process."""

    def __init__(self, number: int, options: RankOptions) -> None:
        # Spawned: a fork would copy this process's threads' locks in whatever state they are.
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        self._process = spawn.Process(
            target=_live, args=(number, options, theirs), name=f"rank-{number}", daemon=True
        )
        self._process.start()
        theirs.close()  # so that the rank's end is the pipe's end
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
    """Start the ranks as children of this process; see `StartRanks`."""
    return [ChildRank(number, options) for number in range(options.ranks)]


def _live(number: int, options: RankOptions, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that holds the group
    serve_rank(number, options, pipe)
    # Not by the usual way out, on which a collective that others left would be waited for.
    os._exit(0)
