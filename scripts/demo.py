"""`make demo`: a service for the time of one example, unless one already answers.

Jobs and checkpoints stay in the service's data folder ($TINKERGYM_HOME, else ~/.tinkergym). Ctrl-C ends the
job too: otherwise it would go on with the service's next start, beside what was started then.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tinkergym.cli.local_service import local_service
from tinkergym.errors import TinkerGymError
from tinkergym.remote.job import Job
from tinkergym.reporting.report import play_command
from tinkergym.schema.events import JobState

EXAMPLE = Path(__file__).parent.parent / "examples" / "tictactoe.py"


class _InterruptedError(Exception):
    """Ctrl-C came while the example ran; the text says what became of its job."""


def main() -> int:
    """Run the example against a service; the exit status is 0 when it ran to its end."""
    try:
        with local_service(announce=print) as started_here:
            job = _run_example()
    except TinkerGymError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, _InterruptedError) as interrupt:
        print(f"demo: interrupted; {str(interrupt) or 'nothing was started'}", file=sys.stderr)
        return 130
    if started_here and job is not None:
        # The report's own line holds while a service runs; by now this one has stopped.
        print(f"To play against it, first `make serve`, then in another terminal:\n    {play_command(job)}")
    return 0


def _run_example() -> Job | None:
    # Not by runpy: the job that an interrupted example has started is found among its names.
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(EXAMPLE)}
    try:
        exec(compile(EXAMPLE.read_text(encoding="utf-8"), str(EXAMPLE), "exec"), names)
    except KeyboardInterrupt:
        if "job" in names:
            raise _InterruptedError(_cancel(names["job"])) from None
        raise
    return names.get("job")


def _cancel(job: Job) -> str:
    """Cancel a job, and say what became of it."""
    try:
        view = job.cancel()
    except TinkerGymError:
        return f"{job.id} could not be cancelled, `tinkergym jobs cancel {job.id}` does it"
    if view.state is JobState.COMPLETED:
        return f"{job.id} was done by then"
    when = f"after step {view.step} of {view.spec.steps}" if view.step else "before its first step"
    return f"{job.id} is cancelled {when}"


if __name__ == "__main__":
    sys.exit(main())
