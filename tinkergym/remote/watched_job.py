"""What a user sees while waiting for a job: a display on a terminal, a picture in a notebook."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console

from tinkergym.display.progress import TrainingDisplay
from tinkergym.schema.events import Event, StateEvent, WarningEvent
from tinkergym.schema.jobs.spec import JobSpec

_REDRAW_SECONDS = 0.5


class Watched(Protocol):
    """What watching needs from a job; a notebook also uses its `_repr_html_`."""

    @property
    def id(self) -> str:
        """The job's id."""

    @property
    def spec(self) -> JobSpec:
        """Its settings."""


@contextmanager
def watched(job: Watched, progress: bool | None, *, warnings: bool) -> Iterator[Callable[[Event], None]]:
    """Yield a function to call with each event of the job.

    Args:
        job: The job.
        progress: Whether to show anything; None shows it on a terminal and in a notebook.
        warnings: Whether the display shows the job's warnings.
    """
    if progress is not False and (notebook := _notebook()) is not None:
        with _in_notebook(job, notebook) as show:
            yield show
    elif progress or (progress is None and sys.stderr is not None and sys.stderr.isatty()):
        # Use stderr, so that the script's own output stays clean.
        with TrainingDisplay(job.id, job.spec, console=Console(stderr=True, emoji=False)) as display:
            yield (
                lambda event: (
                    display.show(event) if warnings or not isinstance(event.body, WarningEvent) else None
                )
            )
    else:
        yield lambda event: None


def _notebook() -> Any:
    """Return IPython's display module if this runs in a notebook."""
    ipython = sys.modules.get("IPython")  # In a notebook it is already imported.
    shell = ipython.get_ipython() if ipython is not None else None
    if not hasattr(shell, "kernel"):
        return None
    return importlib.import_module("IPython.display")


@contextmanager
def _in_notebook(job: Watched, notebook: Any) -> Iterator[Callable[[Event], None]]:
    handle = notebook.display(job, display_id=True)
    drawn = time.monotonic()

    def show(event: Event) -> None:
        nonlocal drawn
        # The reason why a job waits may be its last event for a long time.
        told = isinstance(event.body, StateEvent)
        if told or time.monotonic() - drawn >= _REDRAW_SECONDS:
            handle.update(job)
            drawn = time.monotonic()

    try:
        yield show
    finally:
        handle.update(job)
