"""Episodes for a user's own loop: leased one at a time, kept alive in the background, submitted durably."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from tinkergym.errors import ServiceUnavailableError, TinkerGymError
from tinkergym.network.backoff import Backoff
from tinkergym.remote.process_end import before_the_end
from tinkergym.remote.rollout_thread import worker_id
from tinkergym.remote.rollout_transport import HttpRolloutTransport
from tinkergym.schema.episodes import EpisodeRequest, EpisodeResult, LeaseRequest, SubmitRequest
from tinkergym.schema.events import JobState
from tinkergym.trajectory.trajectory import Trajectory

WAIT_SECONDS = 10.0
PATIENCE_SECONDS = 300.0
"""How long to try to reconnect to the service before the script gets an error."""


class ScriptEpisodes:
    """The rollout worker behind a `reset`/`step` script.

    While the script works between calls, a background thread sends heartbeats.
    """

    def __init__(self, transport: HttpRolloutTransport, *, heartbeat_seconds: float) -> None:
        """Start the heartbeats.

        Args:
            transport: The transport for the job's episodes.
            heartbeat_seconds: Between heartbeats; well below the job's client timeout and any lease.
        """
        self._transport = transport
        self._worker_id = worker_id("script")
        self._heartbeat_seconds = heartbeat_seconds
        self._lock = threading.Lock()
        self._held = ""
        self._failure: TinkerGymError | None = None
        self._state = JobState.QUEUED
        self._closed, self._left = threading.Event(), threading.Event()
        self._forget_the_end = before_the_end(self._leave)
        threading.Thread(target=self._beat, name="tinkergym-heartbeat", daemon=True).start()

    def next(self) -> EpisodeRequest | None:
        """Wait for the next episode. Returns None when the job has ended.

        Raises:
            ServiceUnreachableError: The service did not respond for five minutes.
        """
        self.raise_if_broken()
        backoff = Backoff(patience_seconds=PATIENCE_SECONDS)
        waits = backoff.waits()
        while True:
            try:
                reply = self._transport.lease(
                    LeaseRequest(worker_id=self._worker_id, max_episodes=1, wait_seconds=WAIT_SECONDS)
                )
            except ServiceUnavailableError:
                if next(waits, None) is None:
                    raise
                continue
            waits = backoff.waits()
            if reply.episodes:
                with self._lock:
                    self._held = reply.episodes[0].lease_id
                return reply.episodes[0]
            if reply.job_state.final:
                return None

    def submit(self, request: EpisodeRequest, trajectories: Sequence[Trajectory]) -> bool:
        """Hand an episode in; when this returns it is durable.

        Returns:
            Whether it counts. It does not if the lease was lost and the episode was played elsewhere.
        """
        result = EpisodeResult.model_construct(
            episode_id=request.episode_id, lease_id=request.lease_id, trajectories=list(trajectories)
        )
        body = SubmitRequest.model_construct(worker_id=self._worker_id, results=[result])
        waits = Backoff(patience_seconds=PATIENCE_SECONDS).waits()
        try:
            while True:
                try:
                    return self._transport.submit(body).verdicts[0] != "stale"
                except ServiceUnavailableError:
                    if next(waits, None) is None:
                        raise
        finally:
            # Not earlier: while the service is unreachable, the lease must be renewed, or another script gets
            # the episode.
            with self._lock:
                self._held = ""

    def raise_if_broken(self) -> None:
        """Raise an error that the background thread got from the service."""
        if self._failure is not None:
            raise self._failure

    @property
    def ended(self) -> bool:
        """Whether the service said that the job has ended."""
        return self._state.final

    def close(self) -> None:
        """Stop the heartbeats. An unfinished episode goes to the next worker that asks."""
        self._closed.set()
        self._forget_the_end()

    def _leave(self) -> threading.Event:
        self._closed.set()
        return self._left

    def _beat(self) -> None:
        try:
            self._keep_alive()
            if self._failure is None and not self.ended:
                with suppress(TinkerGymError):
                    self._transport.lease(
                        LeaseRequest(worker_id=self._worker_id, max_episodes=0, wait_seconds=0, leaving=True)
                    )
        finally:
            self._left.set()

    def _keep_alive(self) -> None:
        while not self._closed.wait(self._heartbeat_seconds):
            with self._lock:
                held = self._held
            renewal = LeaseRequest(
                worker_id=self._worker_id, max_episodes=0, wait_seconds=0.0, renew=[held] if held else []
            )
            try:
                reply = self._transport.lease(renewal)
            except ServiceUnavailableError:
                continue  # The next heartbeat may succeed, and the script's own calls report more.
            except TinkerGymError as error:
                self._failure = error
                return
            self._state = reply.job_state
