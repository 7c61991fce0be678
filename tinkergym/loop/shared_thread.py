"""A thread that quick environments share.

To wake a thread and to be woken by it takes longer than most steps of quick environments. Where they share
one, it is woken once for all that are called together, and hands over what came of them together.

What is quick may still hang one day. Then, once somebody looks (`waits`), another thread takes over those
that wait behind it: the only case in which an environment is called in another thread than before.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from tinkergym.loop.environment_host import AnyEnv, HostedEnvironment, Report, TakeReports, stack_of

LONG_SECONDS = 0.25
"""How long a call may take before another thread takes over the others."""
_GATHER_SECONDS = 0.002
"""How long reports may wait for those of the calls behind them."""


class SharedHost:
    """Runs the calls of one environment in a thread that others use too, one after the other."""

    def __init__(
        self, shared: SharedThread, make: Callable[[], AnyEnv], report: TakeReports, name: str
    ) -> None:
        """Remember how to make the environment; the first call does."""
        self._shared = shared
        self._environment = HostedEnvironment(make, name)
        self.report = report
        self._lock = threading.Lock()
        self._calls: deque[tuple[int, Callable[[AnyEnv], Any]] | None] = deque()
        self._queued = False
        """Whether a thread has this host before it, or is running a call of it."""
        self._running: threading.Thread | None = None
        self._abandoned = False
        self._closed = threading.Event()

    @property
    def system_prompt(self) -> str | None:
        """What the environment puts before the first observation; known once a call has returned."""
        return self._environment.system_prompt

    def call(self, call_id: int, function: Callable[[AnyEnv], Any]) -> None:
        """Run `function(env)` when those before it have been run."""
        self._put((call_id, function))

    def waits(self) -> bool:
        """Return whether the call is not being run; let another thread go on if the present one hangs."""
        if self._running is not None:
            return False
        self._shared.relieve()
        return True

    def close(self) -> None:
        """Close the environment after the calls that are queued."""
        self._put(None)

    def abandon(self) -> None:
        """Give up on a call that is running: nothing is reported any more; if it returns, all is closed."""
        with self._lock:
            self._abandoned = True
            hanging = self._running
        if hanging is None:
            self.close()
        else:
            self._shared.leave(hanging)

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the environment to be closed; return whether it is."""
        ends_at = time.monotonic() + timeout_seconds
        while not self._closed.wait(max(0.0, min(LONG_SECONDS, ends_at - time.monotonic()))):
            self._shared.relieve()
            if time.monotonic() >= ends_at:
                return False
        return True

    def where(self) -> str:
        """Return the stack of the call that is running, to show where an environment hangs."""
        thread = self._running
        return stack_of(thread) if thread is not None else ""

    def run_next(self) -> Report | None:
        """Run what is next and return the report, if anybody wants one; for the thread that has this host."""
        item, report = self._calls.popleft(), None
        if item is None:
            self._close()
            self._shared.leave()
            return None
        with self._lock:
            self._running = None if self._abandoned else threading.current_thread()
        if self._running is not None:
            report = self._environment.run(self, *item)
            with self._lock:
                self._running = None
                given_up = self._abandoned
            if given_up:  # and has left already
                self._close()
                return None
        with self._lock:
            self._queued = bool(self._calls)
            if self._queued:
                self._shared.ready.put(self)
        return report

    def _put(self, item: tuple[int, Callable[[AnyEnv], Any]] | None) -> None:
        with self._lock:
            self._calls.append(item)
            if not self._queued:
                self._queued = True
                self._shared.ready.put(self)

    def _close(self) -> None:
        self._environment.close()
        self._closed.set()


class SharedThread:
    """Runs the calls of many environments, in the order in which they come.

    There is a thread as long as there are environments.
    """

    def __init__(self) -> None:
        """Start nothing before there is an environment."""
        self.ready: SimpleQueue[SharedHost | None] = SimpleQueue()
        """Environments that have a call to be run; None only wakes."""
        self._lock = threading.Lock()
        self._hosts = 0
        self._runner: _Runner | None = None

    def open(self, make: Callable[[], AnyEnv], report: TakeReports, *, name: str) -> SharedHost:
        """Return a host for one more environment."""
        with self._lock:
            self._hosts += 1
            if self._runner is None:
                self._runner = _Runner(self.ready)
        return SharedHost(self, make, report, name=name)

    def leave(self, hanging: threading.Thread | None = None) -> None:
        """Note that an environment is gone: closed, or left behind in a thread in which it hangs."""
        with self._lock:
            self._hosts -= 1
            runner = self._runner
            assert runner is not None, "there is a thread as long as there are environments"
            if self._hosts and runner.thread is not hanging:
                return
            runner.relieve()
            self._runner = _Runner(self.ready) if self._hosts else None
        runner.hand_over()
        self.ready.put(None)

    def relieve(self) -> None:
        """Let another thread go on if the present one has been running one call for long."""
        with self._lock:
            runner = self._runner
            if runner is None or not runner.relieve(LONG_SECONDS):
                return
            self._runner = _Runner(self.ready)
        runner.hand_over()


class _Runner:
    """One thread at work, until another relieves it."""

    def __init__(self, ready: SimpleQueue[SharedHost | None]) -> None:
        self._ready = ready
        self._lock = threading.Lock()
        self._relieved = False
        self._call_began: float | None = None
        self._reports: list[tuple[TakeReports, Report]] = []
        # A daemon: a hanging environment must not keep the program from ending.
        self.thread = threading.Thread(target=self._serve, name="quick environments", daemon=True)
        self.thread.start()

    def relieve(self, after_seconds: float | None = None) -> bool:
        """Make this call its last if it has been running for so long, or whatever it does; return whether."""
        with self._lock:
            if after_seconds is not None:
                began = self._call_began
                if began is None or time.monotonic() - began < after_seconds:
                    return False
            self._relieved = True
            return True

    def hand_over(self) -> None:
        """Deliver the reports that have been gathered."""
        with self._lock:
            gathered, self._reports = self._reports, []
        by_taker: dict[TakeReports, list[Report]] = {}
        for take, report in gathered:
            by_taker.setdefault(take, []).append(report)
        for take, reports in by_taker.items():
            take(reports)

    def _serve(self) -> None:
        while not self._relieved:
            host = self._ready.get()
            gathering_ends_at = time.monotonic() + _GATHER_SECONDS
            while host is not None:
                self._run(host)
                host = None if self._relieved or time.monotonic() > gathering_ends_at else self._at_once()
            self.hand_over()

    def _run(self, host: SharedHost) -> None:
        self._call_began = time.monotonic()
        report = host.run_next()
        with self._lock:
            self._call_began = None
            if report is not None:
                self._reports.append((host.report, report))

    def _at_once(self) -> SharedHost | None:
        try:
            return self._ready.get_nowait()
        except Empty:
            return None
