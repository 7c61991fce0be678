"""A job that a script's own loop plays: its next lease, and the errors and warnings of using it.

The wrappers `TrainRemotely` and `TrainGame` share it. It does not know what an episode consists of.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Literal

from tinkergym.errors import EpisodeProtocolError
from tinkergym.remote.job import Job, raise_for
from tinkergym.remote.rollout_transport import HttpRolloutTransport
from tinkergym.remote.script_episodes import ScriptEpisodes
from tinkergym.schema.episodes import EpisodeRequest
from tinkergym.trajectory.trajectory import Trajectory

_MOST_HEARTBEAT_SECONDS = 5.0


class ScriptJob:
    """Leases one episode after another, until the job's steps are done."""

    def __init__(
        self,
        job: Job,
        transport: HttpRolloutTransport,
        *,
        client_timeout_seconds: float,
        played: Literal["episode", "game"],
        wraps: Literal["env", "game"],
    ) -> None:
        """Start the heartbeats.

        Args:
            job: The job.
            transport: The transport for its episodes.
            client_timeout_seconds: The job's setting.
            played: What an episode is called in messages.
            wraps: What the script passes to `TrainRemotely`, for messages.
        """
        self._job, self._played, self._wraps = job, played, wraps
        self._episodes = ScriptEpisodes(
            transport, heartbeat_seconds=min(_MOST_HEARTBEAT_SECONDS, client_timeout_seconds / 4)
        )
        self._leased: EpisodeRequest | None = None
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

    def submit(self, request: EpisodeRequest, trajectories: Sequence[Trajectory], *, stacklevel: int) -> None:
        """Hand an episode in; warn if it does not count."""
        if not self._episodes.submit(request, trajectories):
            warnings.warn(
                f"the {self._played} does not count: the service has given it to another worker, because "
                "this one did not respond for too long",
                stacklevel=stacklevel + 1,
            )

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
