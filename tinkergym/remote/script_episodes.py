"""Episodes for a user's own loop: one lease at a time, kept alive in the background, handed in durable."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress

from tinkergym.backoff import Backoff
from tinkergym.errors import ServiceUnavailableError, TinkerGymError
from tinkergym.remote.process_end import before_the_end
from tinkergym.remote.rollout_thread import worker_id
from tinkergym.remote.rollout_transport import HttpRolloutTransport
from tinkergym.schema.episodes import EpisodeRequest, EpisodeResult, LeaseRequest, SubmitRequest
from tinkergym.schema.events import JobState
from tinkergym.trajectory.trajectory import Trajectory

WAIT_SECONDS = 10.0
LEAVE_SECONDS = 4.0
PATIENCE_SECONDS = 300.0
"""How long a service that went away is looked for before the script hears of it."""


class ScriptEpisodes:
    """The rollout worker behind a `reset`/`step` script.

    While the script thinks between two calls, a background thread keeps telling the service that it lives.
    """

    def __init__(self, transport: HttpRolloutTransport, *, heartbeat_seconds: float) -> None:
        """Begin to send heartbeats.

        Args:
            transport: To the job's episodes.
            heartbeat_seconds: Between two signs of life; well below the job's client timeout and any lease.
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
        """Wait for the next episode; None when the job has ended.

        Raises:
            ServiceUnreachableError: the service stayed away for five minutes.
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
            Whether it counts; not if the lease was lost meanwhile and the episode was played again elsewhere.
        """
        with self._lock:
            self._held = ""
        result = EpisodeResult.model_construct(
            episode_id=request.episode_id, lease_id=request.lease_id, trajectories=list(trajectories)
        )
        body = SubmitRequest.model_construct(worker_id=self._worker_id, results=[result])
        waits = Backoff(patience_seconds=PATIENCE_SECONDS).waits()
        while True:
            try:
                return self._transport.submit(body).verdicts[0] != "stale"
            except ServiceUnavailableError:
                if next(waits, None) is None:
                    raise

    def raise_if_broken(self) -> None:
        """Raise what the background thread was told by the service."""
        if self._failure is not None:
            raise self._failure

    @property
    def ended(self) -> bool:
        """Whether the service said that the job has ended."""
        return self._state.final

    def close(self) -> None:
        """Stop the heartbeats; an episode under way goes to whoever asks next."""
        self._closed.set()
        self._forget_the_end()

    def _leave(self) -> None:
        self._closed.set()
        self._left.wait(LEAVE_SECONDS)

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
                continue  # the next beat may get through, and the script's own calls say more
            except TinkerGymError as error:
                self._failure = error
                return
            self._state = reply.job_state
