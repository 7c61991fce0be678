"""How many episodes have been played, on a terminal. Where the error stream is none, nothing is shown."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def episodes_shown(
    total: int, *, done: int = 0, progress: bool | None = None
) -> Iterator[Callable[[], None]]:
    """Yield what is to be called when an episode has ended.

    Args:
        total: How many there will be.
        done: How many there are already.
        progress: Whether to show it; None does so on a terminal only.
    """
    if not (progress or (progress is None and sys.stderr is not None and sys.stderr.isatty())):
        yield lambda: None
        return
    # Only here: most who evaluate do so in a script or a notebook.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("episodes"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # To the error stream: what a script prints stays clean.
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("", total=total, completed=done)
        yield lambda: bars.advance(bar)
