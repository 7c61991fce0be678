"""The processes of a data-parallel group: one call at a time, which the first rank passes on to the others.

A rank that dies, hangs, fails unexpectedly or sends an unreadable reply ends the group with a specific error:
the others would wait for it in the middle of a sum.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from backend.errors import RankLostError
from backend.learner.parallel.rank_process import RankProcess
from backend.processes.exhaustion import OUT_OF_MEMORY, says_out_of_memory
from tinkergym.errors import InternalServiceError, TinkerGymError

_CLOSING_SECONDS = 5.0
_CAUSE_SECONDS = 1.0
"""After a rank's death the others fail in their common operation, or the pipe ends, within this time."""


class RankGroup:
    """Thread-safe: callers wait for each other, otherwise replies could be mixed up."""

    def __init__(self, *, silence_seconds: float, patience_seconds: float = 60.0) -> None:
        """Start without ranks.

        Args:
            silence_seconds: A rank that takes longer for a call counts as lost.
            patience_seconds: Minimum time for the others to finish after a rank has refused its part.
        """
        self._silence_seconds, self._patience_seconds = silence_seconds, patience_seconds
        self._ranks: Sequence[RankProcess] = ()
        self._sender: ThreadPoolExecutor | None = None
        self._receivers: list[threading.Thread] = []
        self._inbox: queue.SimpleQueue[tuple[int, bytes | None]] = queue.SimpleQueue()
        """Messages by rank; None when its pipe has ended."""
        self._lost: RankLostError | None = None
        self._lock = threading.Lock()
        self._call = 0
        self._busy_seconds = 0.0

    def take(self, ranks: Sequence[RankProcess]) -> None:
        """Use these ranks from now on, and wait until each is ready.

        Raises:
            RankLostError: A rank ended before it was ready.
            TinkerGymError: The error for which a rank could not be created.
        """
        self._ranks = ranks
        # In a thread: a rank that hangs in the middle of a message must not block reading from the others.
        self._sender = ThreadPoolExecutor(1, "to-rank-0")
        self._receivers = [
            threading.Thread(target=self._receive, args=(number, rank.pipe), daemon=True)
            for number, rank in enumerate(ranks)
        ]
        for receiver in self._receivers:
            receiver.start()
        with self._calling():
            self._answers("loading the model")

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the ranks, in order."""
        return [rank.pid for rank in self._ranks]

    @property
    def busy_seconds(self) -> float:
        """Seconds in which the ranks worked on a call; grows monotonically."""
        return self._busy_seconds

    @property
    def broken(self) -> bool:
        """Whether a rank was lost; every call then raises RankLostError."""
        return self._lost is not None

    @contextlib.contextmanager
    def _calling(self) -> Iterator[None]:
        with self._lock:
            begin = time.perf_counter()
            try:
                yield
            finally:
                self._busy_seconds += time.perf_counter() - begin

    def ask(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of every rank; return the first rank's result.

        Raises:
            RankLostError: A rank died, stopped responding or failed; every later call raises it too.
            InternalServiceError: The group is closed.
            TinkerGymError: The error of the first rank that refuses.
        """
        with self._calling():
            if self._lost is not None:
                raise self._lost
            if self._sender is None:
                raise InternalServiceError(
                    "the data-parallel group is closed", hint="start another", code="closed"
                )
            self._call += 1
            message = pickle.dumps((self._call, name, args, kwargs))
            self._sender.submit(_send, self._ranks[0].pipe, message)
            return self._answers(name)

    def close(self) -> None:
        """Stop the ranks, after their current call unless that takes long."""
        if not self._lock.acquire(timeout=_CLOSING_SECONDS):
            for rank in self._ranks:
                rank.kill()  # waiting callers are notified
            self._lock.acquire()
        try:
            for rank in self._ranks:
                _hang_up(rank.pipe)  # a rank ends when its pipe ends
            deadline = time.monotonic() + (0.0 if self._lost else _CLOSING_SECONDS)
            for rank in self._ranks:
                rank.join(max(0.0, deadline - time.monotonic()))
            if self._sender is not None:
                self._sender.shutdown()
            for receiver in self._receivers:
                receiver.join()
            for rank in self._ranks:
                rank.pipe.close()
            self._ranks, self._sender, self._receivers = (), None, []
        finally:
            self._lock.release()

    def _answers(self, doing: str) -> Any:
        """Wait for one reply of each rank; return the first rank's value, or raise the first error."""
        numbers = range(len(self._ranks))
        answers: dict[int, tuple[bool, Any]] = {}
        began = time.monotonic()
        deadline = began + self._silence_seconds
        refused: int | None = None
        while missing := [number for number in numbers if number not in answers]:
            try:
                number, message = self._inbox.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                ranks = f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}"
                silent = f"{ranks} silent for {time.monotonic() - began:.3g} s in {doing}"
                if refused is not None:
                    silent = f"rank {refused} refused {doing} ({answers[refused][1]}), and then {silent}"
                raise self._break(silent) from None
            if message is None:
                raise self._break(f"rank {number} {self._ranks[number].how_it_ended()} in {doing}")
            try:
                call, worked, value = pickle.loads(message)
            except Exception as error:
                # Its reply is lost, so it is unknown whether it completed the call.
                raise self._break(f"rank {number} answered {doing} unreadably: {error!r}") from error
            if call != self._call:
                continue  # the caller is gone
            answers[number] = worked, value
            if not worked and not isinstance(value, TinkerGymError):
                # Others may wait in a collective operation that it has left.
                raise self._break(self._first_cause(number, f"failed in {doing}: {value}"))
            if not worked and refused is None:
                refused, now = number, time.monotonic()
                # The others do the same work, so they need about as long as this one has taken.
                deadline = min(deadline, now + max(self._patience_seconds, now - began))
        for number in numbers:
            worked, value = answers[number]
            if not worked:
                raise value
        return answers[0][1]

    def _first_cause(self, number: int, how: str) -> str:
        """Find the dead rank, if any: another's failure in a collective operation is only a consequence."""
        deadline = time.monotonic() + _CAUSE_SECONDS
        with contextlib.suppress(queue.Empty):
            while True:
                other, message = self._inbox.get(timeout=max(0.0, deadline - time.monotonic()))
                if message is None:
                    return f"rank {other} {self._ranks[other].how_it_ended()}, and then rank {number} {how}"
        return f"rank {number} {how}"

    def _break(self, what: str) -> RankLostError:
        """End all ranks: what the others wait for will never come."""
        self._lost = RankLostError(
            f"the data-parallel group of {len(self._ranks)} ranks is broken: {what}",
            hint="a job resumes from its last checkpoint on another group; no saved data is lost",
            code=OUT_OF_MEMORY if says_out_of_memory(what) else "",
        )
        for rank in self._ranks:
            rank.kill()
        return self._lost

    def _receive(self, number: int, pipe: Connection) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                self._inbox.put((number, pipe.recv_bytes()))
        self._inbox.put((number, None))


def _hang_up(pipe: Connection) -> None:
    """End a pipe for both sides; only to close it would not wake a thread that reads from it."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(pipe.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


def _send(pipe: Connection, message: bytes) -> None:
    with contextlib.suppress(OSError):  # the rank is gone, which its missing reply will show
        pipe.send_bytes(message)
