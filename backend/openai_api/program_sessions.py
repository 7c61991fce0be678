"""Sessions of agent programs that run elsewhere: the client's own worker, in this process, per job and key.

It plays as any client does, through the gateway's own address and with that key, whose rate counts tokens;
but its program only waits until a reward is posted. Sessions end with this process; their episodes are issued
again.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from tinkergym.basics.bounded_dict import BoundedDict
from tinkergym.errors import ServiceUnavailableError, TinkerGymError
from tinkergym.recording.agent_program import AgentProgram, ProgramSession
from tinkergym.recording.session_server import SessionServer
from tinkergym.remote.rollout_thread import worker_id
from tinkergym.remote.rollout_transport import HttpRolloutTransport, Routes
from tinkergym.remote.transport import Connection
from tinkergym.rollout.rollout_worker import RolloutWorker

PREFIX = "/openai/s"
"""The path of sessions: `/NAME/ROLE/v1` and `/NAME/reward` follow."""

_MOST_SESSIONS = 256
"""Of one job and key at once."""
_MOST_OWNERS = 100_000
_GRACE_SECONDS = 60.0
"""The player ends a session that is too long; its thread looks later."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class OpenedSession:
    """A session, and the number of its task if the job chooses it."""

    session: ProgramSession
    task_index: int | None
    is_taken: bool = False
    is_over: bool = False


class _WaitingProgram(AgentProgram):
    """Hands its session out, and waits for the reward."""

    def __init__(self, sessions: _JobSessions) -> None:
        super().__init__(lambda _: None, None)
        self._sessions = sessions

    def play(self, session: ProgramSession, task_index: int | None) -> Any:
        """Wait until a program has posted its reward."""
        opened = OpenedSession(session, task_index)
        self._sessions.ready.put(opened)
        try:
            return session.posted_reward(session.timeout_seconds + _GRACE_SECONDS)
        finally:
            self._sessions.ended(opened)


class _JobSessions:
    """The sessions of one job that one key opens."""

    def __init__(self, url: str, key: str, job_id: str, server: SessionServer) -> None:
        self._connection = Connection(url, token=key)
        self.ready: SimpleQueue[OpenedSession] = SimpleQueue()
        self._lock = threading.Lock()
        self._taken = self._wanted = 0
        self.failure: Exception | None = None
        self._worker = RolloutWorker(
            HttpRolloutTransport(self._connection, Routes.of_gateway(job_id)),
            make_env=lambda _: _WaitingProgram(self),
            max_episodes=0,
            recorder=server,
            worker_id=worker_id("sessions"),
        )
        self._thread = threading.Thread(target=self._run, name=f"sessions of {job_id}", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether its worker has ended, with the job or by an error."""
        return not self._thread.is_alive()

    def stop(self) -> None:
        """Let its worker end soon."""
        self._worker.stop()

    def next(self, seconds: float) -> OpenedSession:
        """Return a session that no program has; it is waited for.

        Raises:
            ServiceUnavailableError: None was due in time.
            TinkerGymError: The job's episodes cannot be leased.
        """
        self._change(wanted=1)
        until = time.monotonic() + seconds
        try:
            while not self._take(found := self.ready.get(timeout=max(0.0, until - time.monotonic()))):
                pass  # One that ended while no program had it.
        except Empty:
            if self.failure is not None:
                raise self.failure from None
            raise ServiceUnavailableError(
                "no episode of the job is due", hint="ask again; between steps the policy learns"
            ) from None
        finally:
            self._change(wanted=-1)
        return found

    def ended(self, opened: OpenedSession) -> None:
        """Note that a session is over."""
        with self._lock:
            opened.is_over = True
            was_taken = opened.is_taken
        if was_taken:
            self._change(taken=-1)

    def _take(self, opened: OpenedSession) -> bool:
        """Give a session to a program; return whether it goes on."""
        with self._lock:
            opened.is_taken = not opened.is_over
        if opened.is_taken:
            self._change(taken=1)
        return opened.is_taken

    def _change(self, *, wanted: int = 0, taken: int = 0) -> None:
        with self._lock:
            self._wanted += wanted
            self._taken += taken
            episodes = min(_MOST_SESSIONS, self._wanted + self._taken)
        self._worker.allow(episodes)

    def _run(self) -> None:
        try:
            self._worker.run()
        except TinkerGymError as error:
            self.failure = error
        except Exception as error:  # The edge of a thread: the next request gets the error.
            _log.warning("sessions of programs ended: %s: %s", type(error).__name__, error)
            self.failure = ServiceUnavailableError("the sessions of the job ended", hint="ask again")
        finally:
            self._connection.close()


@dataclass
class ProgramSessions:
    """The sessions of all jobs that programs elsewhere play. Thread-safe."""

    server: SessionServer = field(default_factory=lambda: SessionServer(base_url=PREFIX))
    _jobs: dict[tuple[str, str], _JobSessions] = field(default_factory=dict)
    """By job and key."""
    _owners: BoundedDict[str, str] = field(default_factory=lambda: BoundedDict(_MOST_OWNERS))
    """The tenant of each session that a program has, by the session's name."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def owner_of(self, name: str) -> str:
        """Return the tenant of a session, which its calls are counted for."""
        with self._lock:
            return self._owners.get(name, "")

    def next(self, job_id: str, tenant_id: str, url: str, key: str, seconds: float) -> OpenedSession:
        """Return a session of a job for a program that asks; see `_JobSessions.next`.

        Args:
            job_id: The job.
            tenant_id: Whose it is.
            url: This gateway's own address.
            key: Of the tenant; samples for the session.
            seconds: How long to wait at most.
        """
        with self._lock:
            job = self._jobs.get((job_id, key))
            if job is None or job.is_over:
                self._jobs = {whose: one for whose, one in self._jobs.items() if not one.is_over}
                job = self._jobs[job_id, key] = _JobSessions(url, key, job_id, self.server)
        opened = job.next(seconds)
        with self._lock:
            self._owners[opened.session.name] = tenant_id
        return opened

    def close(self) -> None:
        """End all of them; their episodes are issued again."""
        with self._lock:
            for job in self._jobs.values():
                job.stop()
            self._jobs.clear()
