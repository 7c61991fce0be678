"""Several runs next to each other: settings that differ, curves on one axis, what evaluations differ by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinkergym.display.html import table
from tinkergym.display.overlaid_curves import overlaid
from tinkergym.display.run_overview import RunOverview, flat_settings
from tinkergym.errors import InvalidRequestError
from tinkergym.evaluation.differences import Difference, unpaired_difference
from tinkergym.evaluation.statistics import interval_text
from tinkergym.reporting.report import save_curve
from tinkergym.schema.events import EvaluationEvent

_MARKS = "ABCDEF"
MOST_RUNS = len(_MARKS)
_MEANT = ("reward_mean", "loss")
"""The metric that is drawn if none is named: the first that every run has."""


@dataclass(frozen=True, kw_only=True)
class EvaluationPair:
    """The newest evaluation of a name in the first run and in another one."""

    name: str
    agent: str
    run: int
    """Index of the other run."""
    first: EvaluationEvent
    other: EvaluationEvent
    difference: Difference
    """The other run's mean minus the first one's."""

    @property
    def is_clear(self) -> bool:
        """Whether the interval of the difference excludes 0."""
        return self.difference.low > 0 or self.difference.high < 0


class RunComparison:
    """Two to six runs. A notebook shows tables and curves."""

    def __init__(self, runs: Sequence[RunOverview]) -> None:
        """Compare runs, each with the first.

        Raises:
            InvalidRequestError: There are fewer than two, or more than six.
        """
        if not 2 <= len(runs) <= MOST_RUNS:
            raise InvalidRequestError(
                f"{len(runs)} different jobs are given", hint=f"compare two to {MOST_RUNS}", field="jobs"
            )
        self.runs = list(runs)

    @property
    def settings(self) -> dict[str, list[str | None]]:
        """The settings that differ, by dotted name: a value per run; None where a run has none."""
        flat = [flat_settings(one.view.spec.model_dump(mode="json")) for one in self.runs]
        names = dict.fromkeys(name for one in flat for name in one if name != "name")
        rows = {name: [one.get(name) for one in flat] for name in names}
        # A setting that one run leaves empty and another has not at all is no difference.
        return {name: own for name, own in rows.items() if len({str(one) for one in own}) > 1}

    @property
    def metrics(self) -> list[str]:
        """The metrics that every run has."""
        first, *others = (one.series.names for one in self.runs)
        return [name for name in first if all(name in other for other in others)]

    @property
    def evaluations(self) -> list[EvaluationPair]:
        """The newest evaluations of each name and agent, of the other runs against the first."""
        first, *others = map(_newest, self.runs)
        return [
            EvaluationPair(
                name=name,
                agent=agent,
                run=at,
                first=one,
                other=other[name, agent],
                difference=unpaired_difference(one, other[name, agent]),
            )
            for (name, agent), one in first.items()
            for at, other in enumerate(others, 1)
            if (name, agent) in other
        ]

    def curves(self, metric: str = "") -> dict[str, list[tuple[int, float]]]:
        """Return step and value of a metric, by the runs' marks and names.

        Args:
            metric: Its name; by default the mean reward, or the loss.

        Raises:
            InvalidRequestError: Not every run has it.
        """
        metric = metric or self._meant()
        if metric not in self.metrics:
            raise InvalidRequestError(
                f"not every run has the metric {metric!r}",
                hint=f"all have {', '.join(self.metrics) or 'none'}",
                field="metric",
            )
        series = [next(one for one in run.series.series if one.name == metric) for run in self.runs]
        points = [list(zip(one.steps, one.values, strict=True)) for one in series]
        return dict(zip(self.names, points, strict=True))

    @property
    def names(self) -> list[str]:
        """A mark and the name of each run."""
        named = [one.labels.name or one.view.spec.name or one.view.job_id for one in self.runs]
        return [f"{mark} {name}" for mark, name in zip(_MARKS, named, strict=False)]

    def to_png(self, path: str | Path, metric: str = "") -> str:
        """Draw the curves; return a sentence with the picture's path, or the missing package.

        Raises:
            InvalidRequestError: Not every run has the metric.
        """
        metric = metric or self._meant()
        return save_curve(self.curves(metric), Path(path), title="", label=metric)

    def to_json(self) -> dict[str, Any]:
        """Return all as plain data."""
        return {
            "jobs": [one.view.job_id for one in self.runs],
            "settings": self.settings,
            "metrics": {
                name: [points[-1][1] for points in self.curves(name).values()] for name in self.metrics
            },
            "evaluations": [
                {
                    "name": one.name,
                    "agent": one.agent,
                    "job": self.runs[one.run].view.job_id,
                    "difference": one.difference.mean,
                    "interval_95": [one.difference.low, one.difference.high],
                    "p": one.difference.p,
                    "episodes": [one.first.episodes, one.other.episodes],
                }
                for one in self.evaluations
            ],
        }

    def lines(self, metric: str = "") -> list[str]:
        """Return the comparison as text."""
        return [line for _, part in self._parts(metric) for line in [*part, ""]][:-1]

    def _parts(self, metric: str) -> Iterator[tuple[str, list[str]]]:
        yield (
            "runs",
            [
                f"{name}  {run.view.job_id}  {run.view.state}, step {run.view.step} of {run.view.spec.steps}"
                for name, run in zip(self.names, self.runs, strict=True)
            ],
        )
        rows = [
            [name, *("-" if value is None else value for value in values)]
            for name, values in self.settings.items()
        ]
        yield (
            "settings",
            _aligned([["settings that differ", *_MARKS[: len(self.runs)]], *rows])
            if rows
            else ["all settings are equal"],
        )
        if self.metrics:
            metric = metric or self._meant()
            yield "curves", [metric, *overlaid(list(self.curves(metric).values()), _MARKS)]
        if pairs := self.evaluations:
            yield "evaluations", ["newest evaluations", *(f"  {self._pair(one)}" for one in pairs)]

    def _pair(self, one: EvaluationPair) -> str:
        found = one.difference
        p = "" if found.p != found.p else f", p = {found.p:.2g}"
        verdict = "" if one.is_clear else "  (no clear difference)"
        whose = f" {one.agent}" if one.agent else ""
        return (
            f"{one.name}{whose}: {_MARKS[one.run]} {one.other.mean:+.3f} - A {one.first.mean:+.3f} = "
            f"{found.mean:+.3f} {interval_text(found.low, found.high, '+.3f')}{p}{verdict}"
        )

    def _meant(self) -> str:
        return next((name for name in (*_MEANT, *self.metrics) if name in self.metrics), _MEANT[0])

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        rows = [
            [name, *("-" if value is None else value for value in values)]
            for name, values in self.settings.items()
        ]
        pairs = [[one.name, self.names[one.run], self._pair(one)] for one in self.evaluations]
        curves = "\n".join(line for name, part in self._parts("") if name == "curves" for line in part)
        return (
            table(["settings that differ", *self.names], rows)
            + (f"<pre>{curves}</pre>" if curves else "")
            + table(["evaluation", "run", "difference"], pairs)
        )


def _newest(run: RunOverview) -> dict[tuple[str, str], EvaluationEvent]:
    return {(one.name, one.agent): one for one in run.evaluations if one.mean is not None}


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
