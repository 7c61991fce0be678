"""A thread shared by fast environments.

Waking a thread and being woken by it takes longer than most steps of fast environments. A shared thread is
woken once for all environments that are called together, and delivers their results together.

A fast environment may still hang one day. Then, at the next check (`look_after`), another thread takes over
all environments whose episode has begun. This is the only case in which an environment is called in a
different thread than the one that created it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from tinkergym.rollout.environment_host import AnyEnv, BaseHost, Report, TakeReports, stack_of

LONG_SECONDS = 0.25
"""How long a call may take before another thread takes over the waiting environments."""
_GATHER_SECONDS = 0.002
"""After this long, reports are delivered although further calls wait: when the running call returns, or at
the next check."""


class SharedHost(BaseHost):
    """Runs the calls of one environment in a thread shared with others, one after the other."""

    def __init__(
        self, shared: SharedThread, make: Callable[[], AnyEnv], report: TakeReports, *, name: str
    ) -> None:
        """Store how to create the environment; the first call does."""
        super().__init__(make, report, name=name)
        self._shared = shared
        self._lock = threading.Lock()
        self._calls: deque[tuple[int, Callable[[AnyEnv], Any]] | None] = deque()
        self._queued = False
        """Whether a thread has queued this host, or is running a call of it."""
        self._called = 0.0
        self._began: float | None = None
        """When the last call began, by the monotonic clock; None before the first."""
        self._home: threading.Thread | None = None
        """The thread that created the environment."""
        self._running: threading.Thread | None = None
        self._abandoned = False
        self._closed = threading.Event()

    @property
    def closed(self) -> bool:
        """Whether the environment is closed."""
        return self._closed.is_set()

    @property
    def displaced(self) -> bool:
        """Whether calls now run in a different thread than the one that created the environment."""
        return self._home is not None and self._home is not self._shared.thread

    def call(self, call_id: int, function: Callable[[AnyEnv], Any]) -> None:
        """Run `function(env)` after the calls queued before it."""
        self._called, self._began = time.monotonic(), None
        self._put((call_id, function))

    def waited_seconds(self) -> float:
        """Return how long the last call waited, or has been waiting, for those of other environments."""
        began = self._began
        return (time.monotonic() if began is None else began) - self._called

    def close(self) -> None:
        """Close the environment after the queued calls."""
        self._put(None)

    def abandon(self) -> bool:
        """Stop reporting; close the environment as soon as no call of it is running.

        Returns:
            Whether one is running.
        """
        with self._lock:
            if self._abandoned:
                return self._running is not None
            self._abandoned = True
            hangs = self._running is not None
        if hangs:
            self._shared.leave(self)
        else:
            self.close()
        return hangs

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the environment to be closed; return whether it is."""
        ends_at = time.monotonic() + timeout_seconds
        while not self._closed.wait(max(0.0, min(LONG_SECONDS, ends_at - time.monotonic()))):
            self._shared.look_after()
            if time.monotonic() >= ends_at:
                return False
        return True

    def where(self) -> str:
        """Return the stack of the running call, to show where an environment hangs."""
        thread = self._running
        stack = stack_of(thread) if thread is not None else ""
        return stack if self._running is thread else ""

    def run_next(self) -> Report | None:
        """Run the next call and return a report if one is wanted; for the thread that owns this host."""
        item, report = self._calls.popleft(), None
        if item is None:
            self._close()
            self._shared.leave(self)
            return None
        with self._lock:
            self._running = None if self._abandoned else threading.current_thread()
        if self._running is not None:
            self._home = self._home or self._running
            self._began = time.monotonic()
            report = self._run(*item)
            with self._lock:
                self._running = None
                given_up = self._abandoned
            if given_up:  # It has already left.
                self._close()
                return None
        with self._lock:
            self._queued = bool(self._calls)
            if self._queued:
                self._shared.put(self)
        return report

    def _put(self, item: tuple[int, Callable[[AnyEnv], Any]] | None) -> None:
        with self._lock:
            self._calls.append(item)
            if not self._queued:
                self._queued = True
                self._shared.put(self)

    def _close(self) -> None:
        self._close_environment()
        self._closed.set()


class SharedThread:
    """Runs the calls of many environments, in order of arrival.

    A thread exists while there are environments.
    """

    def __init__(self) -> None:
        """Start nothing before there is an environment."""
        self._changed = threading.Condition()
        self._ready: deque[SharedHost] = deque()
        self._hosts = 0
        self._runner: _Runner | None = None

    @property
    def thread(self) -> threading.Thread | None:
        """The thread that runs calls at present; None if there are no environments."""
        runner = self._runner
        return runner.thread if runner is not None else None

    def open(self, make: Callable[[], AnyEnv], report: TakeReports, *, name: str) -> SharedHost:
        """Return a host for one more environment."""
        with self._changed:
            self._runner = self._runner or _Runner(self)
            self._hosts += 1
        return SharedHost(self, make, report, name=name)

    def put(self, host: SharedHost) -> None:
        """Let the thread run the host's next call after those of the others."""
        with self._changed:
            self._ready.append(host)
            self._changed.notify()

    def next(self, runner: _Runner, *, wait: bool) -> SharedHost | None:
        """Return whose call comes next; None if another thread has taken over, or if nothing is queued."""
        with self._changed:
            while wait and not self._ready and self._runner is runner:
                self._changed.wait()
            if self._runner is not runner or not self._ready:
                return None
            runner.began(self._ready[0])
            return self._ready.popleft()

    def leave(self, host: SharedHost) -> None:
        """Record that an environment is gone: closed, or abandoned in the thread in which it hangs."""
        with self._changed:
            runner = self._runner
            assert runner is not None, "a thread exists while there are environments"
            if self._hosts == 1:
                self._runner = None
            elif not host.closed and runner.host is host:
                self._runner = _Runner(self)
            self._hosts -= 1
            self._changed.notify_all()
        if self._runner is not runner:
            runner.hand_over()

    def look_after(self) -> None:
        """Let another thread continue if the present one has been running one call for long."""
        with self._changed:
            runner = self._runner
            if runner is None or runner.host is None:
                return
            if self._ready and time.monotonic() - runner.call_began > LONG_SECONDS:
                self._runner = _Runner(self)
        runner.hand_over()


class _Runner:
    """One working thread, until another replaces it."""

    def __init__(self, shared: SharedThread) -> None:
        self._shared = shared
        self.host: SharedHost | None = None
        """The host whose call is running."""
        self.call_began = 0.0
        self._lock = threading.Lock()
        self._reports: list[tuple[TakeReports, Report]] = []
        # A daemon: a hanging environment must not keep the program from ending.
        self.thread = threading.Thread(target=self._serve, name="quick environments", daemon=True)
        self.thread.start()

    def began(self, host: SharedHost) -> None:
        """Record whose call is running, and since when."""
        self.host, self.call_began = host, time.monotonic()

    def hand_over(self) -> None:
        """Deliver the collected reports."""
        with self._lock:
            gathered, self._reports = self._reports, []
        by_taker: dict[TakeReports, list[Report]] = {}
        for take, report in gathered:
            by_taker.setdefault(take, []).append(report)
        for take, reports in by_taker.items():
            take(reports)

    def _serve(self) -> None:
        while (host := self._shared.next(self, wait=True)) is not None:
            gathering_ends_at = time.monotonic() + _GATHER_SECONDS
            while host is not None:
                report = host.run_next()
                self.host = None
                if report is not None:
                    with self._lock:
                        self._reports.append((host.report, report))
                late = time.monotonic() > gathering_ends_at
                host = None if late else self._shared.next(self, wait=False)
            self.hand_over()
