"""The rollout worker of a script: plays a job's episodes in a background thread."""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable

from tinkergym.errors import TinkerGymError
from tinkergym.remote import client_evaluations
from tinkergym.remote.process_end import before_the_end
from tinkergym.remote.rollout_transport import HttpRolloutTransport, Routes
from tinkergym.remote.transport import Connection
from tinkergym.rollout.executors import MakeEnv
from tinkergym.rollout.played_episode import Recorder
from tinkergym.rollout.rollout_worker import RolloutTransport, RolloutWorker
from tinkergym.schema.ids import WorkerRef
from tinkergym.schema.jobs.view import JobView

_log = logging.getLogger(__name__)
_MOST_EPISODES_AT_ONCE = 256


class RolloutThread:
    """Runs a `RolloutWorker` until the job ends, `stop` is called, or the process goes away.

    A daemon thread: it ends with the script, which then prints a warning, and the job waits for a client.
    """

    def __init__(
        self,
        transport: RolloutTransport,
        make_env: MakeEnv,
        *,
        job_id: str,
        max_episodes: int,
        recorder: Recorder | None = None,
    ) -> None:
        """Prepare the worker.

        Args:
            transport: The transport for the job's episodes.
            make_env: Creates the environment that a request names.
            job_id: For the warning when the script ends before the job.
            max_episodes: How many episodes are played at once.
            recorder: See `EpisodePlayer`.
        """
        self._worker = RolloutWorker(
            transport,
            make_env=make_env,
            max_episodes=max_episodes,
            worker_id=worker_id("client"),
            recorder=recorder,
        )
        self._job_id = job_id
        attach = "attach(%r, env=...)" if recorder is None else "attach_agent(%r, play, tasks)"
        self._how_to_go_on = f"Client.{attach % job_id}"
        self._failure: BaseException | None = None
        self._saw_the_end = False
        self._thread = threading.Thread(target=self._run, name="tinkergym-rollout", daemon=True)
        self._forget_the_end: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start playing."""
        self._forget_the_end = before_the_end(self._leave)
        self._thread.start()

    def stop(self) -> None:
        """Stop playing and wait for the thread. The service issues unfinished episodes again."""
        self._worker.stop()
        self._forget_the_end()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=10.0)

    @property
    def is_playing(self) -> bool:
        """Whether it plays, or has played until the job ended, which the script may not know yet."""
        return self._thread.is_alive() or self._saw_the_end

    def raise_if_broken(self) -> None:
        """Raise the error that ended the thread, if there was one."""
        if self._failure is None:
            return
        if isinstance(self._failure, TinkerGymError):
            raise self._failure
        raise TinkerGymError(
            f"the worker that plays the episodes in this process failed: {type(self._failure).__name__}: "
            f"{self._failure}",
            hint=f"the job waits; continue with {self._how_to_go_on}",
        ) from self._failure

    def _leave(self) -> threading.Event | None:
        # Otherwise a script whose last line is `train` would end silently, and the job would not progress.
        if not self._thread.is_alive():
            return None
        _log.warning(
            "this script ends before %s, whose episodes it plays, so the job waits for a client (end "
            "the script with job.wait(); continue with %s)",
            self._job_id,
            self._how_to_go_on,
        )
        self._worker.stop()
        return self._worker.left

    def _run(self) -> None:
        try:
            self._worker.run()
            self._saw_the_end = not self._worker.stopped
        except Exception as error:  # The edge of a thread: the script gets the error at its next call.
            self._failure = error


def worker_id(role: str) -> str:
    """Return a worker name that shows in the service's log where it runs."""
    process = f"{role}-{socket.gethostname()[:40]}-{os.getpid()}"
    return str(WorkerRef(process, uuid.uuid4().hex[:8]))


def start_playing(
    connection: Connection, view: JobView, make_env: MakeEnv, recorder: Recorder | None = None
) -> RolloutThread:
    """Start playing a job's episodes in this process.

    Args:
        connection: The connection to its service.
        view: The job.
        make_env: Creates the environment that a request names.
        recorder: See `EpisodePlayer`.
    """
    played = view.spec.played
    episodes = played.groups.episodes if played else client_evaluations.most_at_once(view.spec)
    thread = RolloutThread(
        HttpRolloutTransport(connection, Routes.of_gateway(view.job_id)),
        make_env,
        job_id=view.job_id,
        # One more than a step has, so a request for episodes is always open. When this process is killed, the
        # service sees it break and gives the episodes to the next client instead of waiting for the leases.
        max_episodes=min(_MOST_EPISODES_AT_ONCE, episodes) + 1,
        recorder=recorder,
    )
    thread.start()
    return thread
