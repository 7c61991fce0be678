"""`make demo`: run an example, with a temporary service unless one is already running.

Jobs and checkpoints stay in the service's data folder ($TINKERGYM_HOME, else ~/.tinkergym). Ctrl-C and
SIGTERM also cancel the job: otherwise it would resume with the service's next start, next to newly started
jobs.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tinkergym.cli.local_service import local_service
from tinkergym.errors import TinkerGymError
from tinkergym.remote.job import Job
from tinkergym.reporting.report import play_command
from tinkergym.schema.events import JobState

EXAMPLE = Path(__file__).parent.parent / "examples" / "tictactoe.py"
Service = Callable[..., AbstractContextManager[bool]]


class _InterruptedError(Exception):
    """Ctrl-C was pressed during the example; the text says what happened to its job."""


def main(example: Path = EXAMPLE, service: Service = local_service) -> int:
    """Run the example against a service; the exit status is 0 if it completes."""
    # Else SIGTERM would end this process alone, and leave the service and the job running.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with service(announce=print) as started_here:
            job = _run_example(example)
    except TinkerGymError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, _InterruptedError) as interrupt:
        print(f"demo: interrupted; {str(interrupt) or 'nothing was started'}", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    if started_here and job is not None:
        # The report's own hint assumes a running service; by now this one has stopped.
        print(f"To play against it, first `make serve`, then in another terminal:\n    {play_command(job)}")
    return 0


def _run_example(example: Path) -> Job | None:
    # Not with runpy: the job started by an interrupted example is found among its names.
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(example)}
    try:
        exec(compile(example.read_text(encoding="utf-8"), str(example), "exec"), names)
    except KeyboardInterrupt:
        if "job" in names:
            raise _InterruptedError(_cancel(names["job"])) from None
        raise
    return names.get("job")


def _cancel(job: Job) -> str:
    """Cancel a job, and say what happened to it."""
    try:
        view = job.cancel()
    except TinkerGymError:
        return f"{job.id} could not be cancelled; run `tinkergym jobs cancel {job.id}`"
    if view.state is JobState.COMPLETED:
        return f"{job.id} had already ended"
    when = f"after step {view.step} of {view.spec.steps}" if view.step else "before its first step"
    return f"{job.id} was cancelled {when}"


if __name__ == "__main__":
    sys.exit(main())
