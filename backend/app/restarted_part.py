"""A process that the supervisor keeps running: watched, and restarted after an increasing pause."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from backend.processes import children as processes
from backend.processes.bounded_log import BoundedLog

_FIRST_PAUSE_SECONDS = 0.2
_LONGEST_PAUSE_SECONDS = 10.0
_LAST_WORDS_SECONDS = 1.0
"""How long its last output is waited for: a descendant that got away may keep the pipe open."""
_HEALTHY_SECONDS = 10.0
"""A part that ran for this long is restarted at once, whatever happened before."""


def pause_seconds(failures: int) -> float:
    """Return the pause before the next start, after this many ends in quick succession."""
    return min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2.0 ** max(0, failures - 1))


class RestartedPart:
    """One process. Times are seconds on the supervisor's monotonic clock and are passed as arguments."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        mark: str,
        log: Path,
        pass_fds: Sequence[int] = (),
        *,
        hangs: Callable[[float, float], bool] = lambda _started_at, _now: False,
    ) -> None:
        """Describe it; `hangs` gets its start time and the current time, and returns whether it hangs."""
        self.name = name
        self.log = log
        self.failures = 0
        """Number of ends in quick succession."""
        self._command = command
        self._mark = f"{mark}:{name}"
        self._pass_fds = pass_fds
        self._hangs = hangs
        self._process: subprocess.Popen[bytes] | None = None
        self._output: BoundedLog | None = None
        self._started_at = 0.0
        self._start_at = 0.0
        self._not_started = ""

    @property
    def process_id(self) -> int | None:
        """Its process's id; None between an end and the next start."""
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def due(self, now: float) -> bool:
        """Whether it is time to (re)start it."""
        return self._process is None and now >= self._start_at

    def start(self, now: float, environment: Mapping[str, str]) -> None:
        """Start the process; `ended` reports a failure."""
        self._started_at = now
        try:
            with BoundedLog(self.log) as self._output:
                self._process = processes.start(
                    self._command,
                    mark=self._mark,
                    output=self._output.descriptor,
                    environment=environment,
                    pass_fds=self._pass_fds,
                )
        except (OSError, RuntimeError, MemoryError) as error:  # No memory, thread, or space for the log.
            self._plan_restart(now)
            self._not_started = f"it could not be started: {error}"

    def ended(self, now: float) -> str | None:
        """Return how the process ended, once, and schedule its next start; None while it runs or waits."""
        if self._not_started:
            problem, self._not_started = self._not_started, ""
            return problem
        if self._process is None:
            return None
        hung = self._process.poll() is None and self._hangs(self._started_at, now)
        if hung:
            self._process.kill()
            self._process.wait()
        if self._process.poll() is None:
            return None
        code = self._process.returncode
        # Its successor must not find its remains.
        processes.kill_marked(self._mark)
        self._process = None
        if self._output is not None:
            self._output.join(_LAST_WORDS_SECONDS)
        self._plan_restart(now)
        if hung:
            return "it stopped responding"
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def _plan_restart(self, now: float) -> None:
        healthy = now - self._started_at >= _HEALTHY_SECONDS
        self.failures = 1 if healthy else self.failures + 1
        self._start_at = now if healthy else now + pause_seconds(self.failures)

    def terminate(self) -> None:
        """Ask the process to end."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.terminate()

    def reap(self) -> None:
        """Record the end of a process that was killed."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5.0)

    def last_words(self) -> str:
        """Return the last line of its log."""
        with suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace")[-4000:].strip().splitlines()
            return lines[-1] if lines else ""
        return ""
