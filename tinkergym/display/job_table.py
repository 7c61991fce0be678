"""A list of jobs: lines of a terminal, and a table in a notebook."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from typing import Any

from tinkergym.display.html import table
from tinkergym.display.pandas_tables import frame
from tinkergym.display.progress import duration
from tinkergym.schema.events import JobState
from tinkergym.schema.summaries import JobSummary

_RECENTLY, _LONG_AGO = "%m-%d %H:%M", "%Y-%m-%d"
_MOST_RECENT = datetime.timedelta(days=180)


class JobTable(list[JobSummary]):
    """Jobs in brief, as `client.jobs()` returns them. A notebook shows a table."""

    def __init__(self, jobs: Iterable[JobSummary] = (), *, has_older: bool = False) -> None:
        super().__init__(jobs)
        self.has_older = has_older
        """Whether more jobs match than are listed."""

    def _repr_html_(self) -> str:
        header, *rows = job_rows(self)
        older = "<small>older jobs are not shown</small>" if self.has_older else ""
        return table(header, rows) + older

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row per job.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        rows = (
            {**one.model_dump(exclude={"labels"}), **one.labels.model_dump(exclude={"name"})} for one in self
        )
        return frame(rows)


def job_rows(jobs: Sequence[JobSummary]) -> list[list[str]]:
    """Return the header and a row per job; columns that are empty for all are left out."""
    header = [
        "job",
        "state",
        "step",
        "reward",
        "took",
        "environment",
        "model",
        "started",
        "name",
        "tags",
        "why",
    ]
    rows = [header, *map(_row, jobs)]
    kept = [
        at for at, name in enumerate(header) if at < header.index("name") or any(row[at] for row in rows[1:])
    ]
    return [[row[at] for at in kept] for row in rows]


def _row(one: JobSummary) -> list[str]:
    started = datetime.datetime.fromtimestamp(one.created_at).astimezone()
    is_done = one.state is JobState.COMPLETED and one.step == one.steps
    recent = datetime.datetime.now().astimezone() - started < _MOST_RECENT
    return [
        one.job_id,
        str(one.state),
        f"{one.step}/{one.steps}" if one.steps else "-",
        learned(one),
        duration(one.used_seconds) if one.used_seconds else "-",
        one.environment or one.kind,
        one.model,
        f"{started:{_RECENTLY if recent else _LONG_AGO}}",
        " ".join(one.name.split()),
        " ".join(one.labels.tags),
        "" if is_done else " ".join((one.error or one.reason).split()),
    ]


def learned(one: JobSummary) -> str:
    """Return the newest step's mean reward, or its loss in a job without rewards."""
    if one.reward_mean is not None:
        return f"{one.reward_mean:+.3f}"
    return "-" if one.loss is None else f"loss {one.loss:.3f}"
