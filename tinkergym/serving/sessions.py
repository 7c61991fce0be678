"""Sessions: which session has which place of a server, and how places become free again."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Sequence

from tinkergym.errors import (
    EnvironmentBusyError,
    EnvironmentGoneError,
    InvalidRequestError,
    TinkerGymError,
)
from tinkergym.rollout.environment_host import EnvironmentHost, Report
from tinkergym.serving.making import maker
from tinkergym.serving.named_blobs import SentBlobs
from tinkergym.serving.server_settings import ServerSettings
from tinkergym.serving.session import Session

_SESSION_ID = re.compile(r"[0-9a-f]{32}")
_FEWEST_STUCK = 8
"""The server stops accepting sessions when this many environments, and at least `capacity`, hang."""
_LOOK_AGAIN_SECONDS = 0.5
_CLOSE_SECONDS = 10.0
"""How long an environment may take to close before it is abandoned."""


class Sessions:
    """All sessions of a server. Belongs to its event loop, except for the hosts' reports."""

    def __init__(self, settings: ServerSettings, clock: Callable[[], float]) -> None:
        """Start without sessions; call it in a running event loop.

        Args:
            settings: The server's settings.
            clock: Seconds, monotonic.
        """
        self.sent = SentBlobs()
        """Hashes that the server has sent to any client."""
        self._settings = settings
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._by_id: dict[str, Session] = {}
        self._by_host: dict[object, Session] = {}
        self._stuck: list[EnvironmentHost] = []
        """Abandoned in a call or a close that does not return."""
        self._closing: set[asyncio.Task[None]] = set()
        self._reports: deque[Report] = deque()
        self._woken = False

    @property
    def count(self) -> int:
        """The number of taken places."""
        return len(self._by_host)

    def open(self, session_id: object, *, resume: bool, render_mode: str | None = None) -> Session:
        """Take a place, or resume one: an `open` whose response was lost may be repeated.

        Raises:
            EnvironmentBusyError: No place is free.
            EnvironmentGoneError: The session to resume is gone.
            InvalidRequestError: This is not a session id.
        """
        if not isinstance(session_id, str) or not _SESSION_ID.fullmatch(session_id):
            raise InvalidRequestError("a session id must be 32 random hexadecimal digits")
        session = self._by_id.get(session_id)
        if session is not None:
            session.last_seen, session.lost_at = self._clock(), None
            return session
        if resume:
            raise EnvironmentGoneError(
                "this session is gone: it was closed, idle for "
                f"{self._settings.idle_timeout_seconds:g} s or without a connection for "
                f"{self._settings.lease_seconds:g} s, or the server was restarted",
                hint="reset(seed=...) starts another; raise the server's --idle-timeout or --lease for "
                "more time",
            )
        self._refuse_when_full()
        session = Session(
            session_id,
            make=maker(self._settings, render_mode),
            in_a_process=self._settings.processes,
            report=self._take,
            step_timeout_seconds=self._settings.step_timeout_seconds,
            max_message_bytes=self._settings.max_message_bytes,
            now=self._clock(),
        )
        self._by_id[session_id] = session
        self._by_host[session.host] = session
        return session

    async def close(self, session: Session, reason: TinkerGymError | None = None) -> None:
        """End a session, and wait until its environment is closed and its place is free."""
        session.end(reason or EnvironmentGoneError("the session was closed"))
        self._by_id.pop(session.session_id, None)
        task = self._loop.create_task(self._let_go(session))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        await asyncio.shield(task)

    def sweep(self) -> None:
        """Give up on hanging calls and close unused sessions. Call this regularly."""
        now, lease = self._clock(), self._settings.lease_seconds
        self._stuck = [host for host in self._stuck if not host.join(0.0)]
        for session in list(self._by_id.values()):
            if session.overdue(now):
                session.give_up()
                self._forget(session)
                self._stuck.append(session.host)
            elif not session.busy and session.lost_at is not None and now >= session.lost_at + lease:
                gone = EnvironmentGoneError(
                    f"the session was closed because its client was away for {lease:g} s",
                    hint="reset(seed=...) starts another; raise the server's --lease for more time",
                )
                self._end_later(session, gone)
            elif not session.busy and now - session.last_seen >= self._settings.idle_timeout_seconds:
                seconds = self._settings.idle_timeout_seconds
                idle = EnvironmentGoneError(
                    f"the session was closed because it was idle for {seconds:g} s",
                    hint="reset(seed=...) starts another; raise the server's --idle-timeout for more time",
                )
                self._end_later(session, idle)

    async def close_all(self, seconds: float) -> None:
        """End all sessions. Environments that do not close in time are abandoned, or killed."""
        for session in list(self._by_id.values()):
            self._end_later(session, EnvironmentGoneError("the environment server was stopped"))
        sessions = list(self._by_host.values())
        if self._closing:
            await asyncio.wait(self._closing, timeout=seconds)
        for session in sessions:
            session.host.abandon()

    # --- inside ---

    def _refuse_when_full(self) -> None:
        capacity = self._settings.capacity
        if len(self._stuck) >= max(capacity, _FEWEST_STUCK):
            full = EnvironmentBusyError(
                f"{len(self._stuck)} environments of this server hang and cannot be ended",
                hint="restart the server, with --processes if the environment hangs often",
            )
            full.retry_after_seconds = 60.0
            raise full
        if self.count >= capacity:
            full = EnvironmentBusyError(
                f"all {capacity} places of this environment server are taken",
                hint="try again later, close environments that are done, or raise --capacity",
            )
            full.retry_after_seconds = self._seconds_to_a_place()
            raise full

    def _seconds_to_a_place(self) -> float:
        """Guess: at the latest when the session that was silent the longest becomes idle, but look soon."""
        now, idle = self._clock(), self._settings.idle_timeout_seconds
        oldest = min(session.last_seen for session in self._by_host.values())
        return round(min(_LOOK_AGAIN_SECONDS, max(0.05, oldest + idle - now)), 3)

    def _end_later(self, session: Session, reason: TinkerGymError) -> None:
        task = self._loop.create_task(self.close(session, reason))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        # At once, not when the task runs: the session must not be given to a client any more.
        self._by_id.pop(session.session_id, None)

    async def _let_go(self, session: Session) -> None:
        host = session.host
        ended = await self._loop.run_in_executor(None, host.join, _CLOSE_SECONDS)
        self._forget(session)
        if not ended:
            host.abandon()
            self._stuck.append(host)

    def _forget(self, session: Session) -> None:
        self._by_id.pop(session.session_id, None)
        self._by_host.pop(session.host, None)

    def _take(self, reports: Sequence[Report]) -> None:
        """Receive reports in the host's thread. Many at once wake the event loop only once."""
        self._reports.extend(reports)
        if not self._woken:
            self._woken = True
            try:
                self._loop.call_soon_threadsafe(self._hand_out)
            except RuntimeError:
                return  # The loop has ended, and with it everything that waited.

    def _hand_out(self) -> None:
        # Before the queue is emptied: later reports wake the loop again.
        self._woken = False
        now = self._clock()
        while self._reports:
            report = self._reports.popleft()
            session = self._by_host.get(report.host)
            if session is not None:
                session.reported(report, now)
