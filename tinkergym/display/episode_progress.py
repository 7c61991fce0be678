"""Progress of episodes, or of other work in parts, on a terminal.

Shows nothing if stderr is not a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def episodes_shown(
    total: int | None, *, done: int = 0, progress: bool | None = None, what: str = "episodes"
) -> Iterator[Callable[..., None]]:
    """Yield a function to call when an episode has ended; its argument is how many, by default 1.

    Args:
        total: The total number of episodes; None if it is not known.
        done: How many are already done.
        progress: Whether to show progress; None does so only on a terminal.
        what: What they are, if not episodes.
    """
    if not (progress or (progress is None and sys.stderr is not None and sys.stderr.isatty())):
        yield lambda count=1: None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Use stderr, so that the script's own output stays clean.
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("", total=total, completed=done)
        yield lambda count=1: bars.advance(bar, count)
