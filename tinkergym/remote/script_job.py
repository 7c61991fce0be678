"""A job that a script's own loop plays: its leases, its open record, and the errors and warnings of using it.

The wrappers `TrainRemotely` and `TrainGame` share it. It does not know what an episode consists of.
"""

from __future__ import annotations

import time
import traceback
import warnings
from collections.abc import Callable
from typing import Generic, Literal, Protocol, TypeVar

from tinkergym.errors import EpisodeProtocolError
from tinkergym.remote.job import Job, raise_for
from tinkergym.remote.rollout_transport import HttpRolloutTransport
from tinkergym.remote.script_episodes import ScriptEpisodes
from tinkergym.rollout.environment_host import stop_reason_of
from tinkergym.schema.episodes import EpisodeRequest
from tinkergym.trajectory.trajectory import StopReason, Trajectory

_MOST_HEARTBEAT_SECONDS = 5.0


class ScriptRecord(Protocol):
    """One leased episode or game, as it is recorded."""

    request: EpisodeRequest

    def fail(self, reason: StopReason, error: str) -> None:
        """End it for an external reason; a finished one stays as it ended."""
        ...

    def trajectories(self) -> list[Trajectory]:
        """Return what was recorded, once it has ended."""
        ...


Record = TypeVar("Record", bound=ScriptRecord)
Value = TypeVar("Value")


class ScriptJob(Generic[Record]):
    """Leases one episode after another, until the job's steps are done."""

    def __init__(
        self,
        job: Job,
        transport: HttpRolloutTransport,
        *,
        client_timeout_seconds: float,
        played: Literal["episode", "game"],
        wraps: Literal["env", "game"],
        ended: Callable[[Record, list[Trajectory]], None] = lambda *_: None,
    ) -> None:
        """Start the heartbeats.

        Args:
            job: The job.
            transport: The transport for its episodes.
            client_timeout_seconds: The job's setting.
            played: What an episode is called in messages.
            wraps: What the script passes to `TrainRemotely`, for messages.
            ended: Called with each record before it is handed in.
        """
        self._job, self._played, self._wraps, self._ended = job, played, wraps, ended
        self._episodes = ScriptEpisodes(
            transport,
            # Three may be lost before the job counts its client as gone.
            heartbeat_seconds=min(_MOST_HEARTBEAT_SECONDS, client_timeout_seconds / 4),
        )
        self._leased: EpisodeRequest | None = None
        self.record: Record | None = None
        """The episode that the script plays now."""
        self.done = self.closed = False
        """`done`: the job needs no more episodes."""

    def wants_another(self) -> bool:
        """Whether the job needs another episode; waits while the service computes a train step.

        Raises:
            JobFailedError: The job failed.
        """
        if self._leased is None and not self.done:
            self._leased = self._episodes.next()
            if self._leased is None:
                raise_for(self._job.view())
                self.done = True
        return not self.done

    def take(self) -> EpisodeRequest:
        """Return the lease that `wants_another` waited for."""
        request, self._leased = self._leased, None
        assert request is not None, "wants_another was asked first"
        return request

    def current(self, call: str) -> Record:
        """Return the record of the running episode.

        Raises:
            EpisodeProtocolError: None is running.
        """
        if self.record is None:
            raise EpisodeProtocolError(
                f"{call}() was called without a running {self._played}", hint="begin one with env.reset()"
            )
        return self.record

    def run(self, call: str, function: Callable[[], Value]) -> Value:
        """Run a `reset` or `step` of the script's environment.

        Its duration is recorded: in a script's own thread no call can be interrupted. If it raises, the
        episode ends with the error and is handed in.
        """
        record = self.current(call)
        began = time.monotonic()
        try:
            value = function()
        except Exception as error:
            record.fail(stop_reason_of(error), traceback.format_exc())
            self.hand_in()
            raise
        seconds, allowed = time.monotonic() - began, record.request.limits.step_timeout_seconds
        if seconds > allowed:
            text = f"{call} returned after {seconds:.3g} s; limits.step_timeout_seconds is {allowed:g}"
            record.fail(StopReason.ENVIRONMENT_TIMEOUT, text)
        return value

    def abandon(self) -> None:
        """End an episode that the script leaves, if there is one."""
        if self.record is not None:
            what = f"the script reset or closed in the middle of the {self._played}"
            self.record.fail(StopReason.ABANDONED, what)
            self.hand_in()

    def hand_in(self) -> list[Trajectory]:
        """Hand in the record, which has ended, and return it; warn if it does not count."""
        record, self.record = self.record, None
        assert record is not None
        trajectories = record.trajectories()
        self._ended(record, trajectories)
        if not self._episodes.submit(record.request, trajectories):
            warnings.warn(
                f"the {self._played} does not count: the service has given it to another worker, because "
                "this one did not respond for too long",
                stacklevel=4,
            )
        return trajectories

    def refuse_if_closed(self, call: str) -> None:
        """Check that the script did not close it.

        Raises:
            EpisodeProtocolError: It did.
        """
        if self.closed:
            raise EpisodeProtocolError(
                f"{call}() was called after close()",
                hint=f"if {self._job.id} needs more {self._played}s, continue with "
                f"TrainRemotely({self._wraps}, job_id={self._job.id!r})",
            )

    def raise_if_ended_badly(self) -> None:
        """Raise the error that ended the job or its heartbeats, if one did."""
        self._episodes.raise_if_broken()
        if self._episodes.ended:
            raise_for(self._job.view())

    def warn_if_unfinished(self, *, stacklevel: int) -> None:
        """Wait for the current train step, and warn if the job needs more episodes."""
        if self.wants_another():
            view = self._job.view()
            warnings.warn(
                f"{view.job_id} is at step {view.step} of {view.spec.steps} and waits for episodes; "
                f"continue with TrainRemotely({self._wraps}, job_id={view.job_id!r}) or end it with "
                f"`tinkergym jobs cancel {view.job_id}`",
                stacklevel=stacklevel + 1,
            )

    def close(self) -> None:
        """Stop the heartbeats. A lease that is left goes to the next worker that asks."""
        self.closed = True
        self._episodes.close()
