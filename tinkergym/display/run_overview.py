"""What a person wants to know about a run: as lines of a terminal, and as an HTML page without scripts.

Reads what the service has told; asks nothing itself.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from html import escape

from pydantic import JsonValue

from tinkergym.display.html import curve, document, table
from tinkergym.display.progress import duration, evaluation_line, sparkline, such_as, update_line
from tinkergym.schema.events import CheckpointView, EpisodeEvent, EvaluationEvent, JobState
from tinkergym.schema.jobs.view import JobView
from tinkergym.schema.summaries import Alarm, JobLabels, RunSeries, Series

_TELLING = (
    *("reward_mean", "seat/*/reward_mean", "loss", "policy/*/loss", "eval/*", "accuracy", "reward_margin"),
    *("reverse_kl", "kl", "policy/*/kl", "sampled_entropy", "policy/*/sampled_entropy", "env/*"),
    *("zero_variance_groups", "failed_episodes", "completions/mean_length", "grad_norm", "parity_max"),
    "tokens_per_second",
)
"""The metrics of a terminal's page, in this order; `job.to_pandas()` and the HTML page have all."""
_NOT_CHOSEN = {"name", "template_sha256"}
_MOST_LINES = 20
_SHOWN_EPISODES = 200


@dataclass(frozen=True, kw_only=True)
class RunOverview:
    """A run as far as it has come."""

    view: JobView
    labels: JobLabels
    series: RunSeries
    alarms: Sequence[Alarm]
    evaluations: Sequence[EvaluationEvent]
    checkpoints: Sequence[CheckpointView]
    episodes: Sequence[EpisodeEvent] = ()
    next_commands: Mapping[str, str] = field(default_factory=dict)
    """What one may type next, by its purpose."""

    def lines(self) -> list[str]:
        """Return the overview as text."""
        view = self.view
        name = self.labels.name or view.spec.name
        tags = "".join(f" [{tag}]" for tag in self.labels.tags)
        lines = [f"{view.job_id}{f'  {name}' if name else ''}{tags}", *self._state(), ""]
        if self.labels.note:
            lines += [self.labels.note, ""]
        for title, part in (
            ("alarms", [f"{one.name}{_when(one)}: {_said(one)}" for one in self.alarms]),
            ("settings that differ from the defaults", _columns(changed_settings(view))),
            ("changed during training", [update_line(one) for one in view.updates]),
            ("metrics: first, last", self._metrics()),
            ("evaluations", [evaluation_line(one) for one in self.evaluations[-5:]]),
            ("checkpoints", self._checkpoints()),
            ("next", _columns(self.next_commands)),
        ):
            if part:
                lines += [title, *(f"  {line}" for line in part), ""]
        return lines[:-1]

    def page(self) -> str:
        """Return the overview as one HTML file that runs no script and loads nothing."""
        view = self.view
        settings = [[name, value] for name, value in changed_settings(view).items()]
        varied = [one for one in self._by_importance() if len(set(one.values)) > 1]
        figures = [f"<figure>{curve(one.values, one.name)}</figure>" for one in varied]
        parts = [
            f"<h1>{escape(self.labels.name or view.spec.name or view.job_id)}</h1>",
            *(f"<p>{escape(line)}</p>" for line in [view.job_id, *self._state(), self.labels.note] if line),
            _section(
                "Alarms",
                table(["alarm", "steps", "message"], [[a.name, _when(a), _said(a)] for a in self.alarms]),
            ),
            _section("Metrics", "".join(figures)),
            _section("Evaluations", _list(map(evaluation_line, self.evaluations))),
            _section("Settings that differ from the defaults", table(["setting", "value"], settings)),
            _section("Changed during training", _list(map(update_line, view.updates))),
            _section("Checkpoints", _list(self._checkpoints())),
            _section("Episodes in the log", "".join(map(_episode, self.episodes[-_SHOWN_EPISODES:]))),
        ]
        return document(view.job_id, "".join(parts))

    def metrics_csv(self) -> str:
        """Return the metrics with a row per step, as CSV."""
        columns = {one.name: dict(zip(one.steps, one.values, strict=True)) for one in self.series.series}
        steps = sorted({step for one in columns.values() for step in one})
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["step", *columns])
        rows.writerows([step, *(one.get(step, "") for one in columns.values())] for step in steps)
        return text.getvalue()

    def _state(self) -> Iterator[str]:
        view, spec = self.view, self.view.spec
        what = spec.played.played_in if spec.played else spec.kind
        yield f"{what} on {spec.model}"
        steps = "trained by its client" if spec.by_calls else f"step {view.step} of {spec.steps}"
        left = self._last("seconds_left")
        left_text = f", {duration(left)} left" if left and not view.state.final else ""
        again = f", attempt {view.attempt}" if view.attempt > 1 else ""
        yield (
            f"{view.state}, {steps}{left_text}{again}, ran {duration(view.used_seconds)}, "
            f"{view.used_tokens:,} tokens"
        )
        if view.reason and not (view.state is JobState.COMPLETED and view.step == spec.steps):
            yield f"reason: {view.reason}"
        if view.error is not None:
            yield f"error: {view.error.message}"
            if view.error.hint:
                yield f"  {view.error.hint}"

    def _last(self, name: str) -> float | None:
        found = next((one for one in self.series.series if one.name == name), None)
        return found.values[-1] if found and found.values else None

    def _by_importance(self) -> list[Series]:
        def place(one: Series) -> int:
            return next(
                (at for at, form in enumerate(_TELLING) if fnmatchcase(one.name, form)), len(_TELLING)
            )

        return sorted(
            (one for one in self.series.series if one.values), key=lambda one: (place(one), one.name)
        )

    def _metrics(self) -> list[str]:
        shown = [
            one for one in self._by_importance() if any(fnmatchcase(one.name, form) for form in _TELLING)
        ]
        rows = {
            one.name: f"{one.values[0]:>10.4g} {one.values[-1]:>10.4g}  {sparkline(one.values)}"
            for one in shown
        }
        lines = _columns(dict(list(rows.items())[:_MOST_LINES]))
        return lines + ([f"and {len(rows) - _MOST_LINES} more"] if len(rows) > _MOST_LINES else [])

    def _checkpoints(self) -> list[str]:
        found = [
            f"{one.agent} step {one.step}  {sum(one.files.values()) / 2**20:.1f} MiB".lstrip()
            for one in self.checkpoints
        ]
        return found[-5:] + ([f"and {len(found) - 5} older"] if len(found) > 5 else [])


def changed_settings(view: JobView) -> dict[str, str]:
    """Return the settings of a job that differ from its kind's defaults, by dotted name."""
    return flat_settings(view.spec.model_dump(mode="json", exclude_defaults=True, exclude=_NOT_CHOSEN))


def flat_settings(settings: Mapping[str, JsonValue], before: str = "") -> dict[str, str]:
    """Return nested settings as texts by dotted name."""
    found: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, dict) and value:
            found |= flat_settings(value, f"{before}{name}.")
        else:
            found[before + name] = value if isinstance(value, str) else str(value)
    return found


def _when(alarm: Alarm) -> str:
    if alarm.first_step == alarm.last_step:
        return f" at step {alarm.last_step}"
    return f", {alarm.count} times, steps {alarm.first_step} to {alarm.last_step}"


def _said(alarm: Alarm) -> str:
    return alarm.message + such_as(alarm.episodes)


def _columns(rows: Mapping[str, str]) -> list[str]:
    width = max(map(len, rows), default=0)
    return [f"{name:{width}}  {value}" for name, value in rows.items()]


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2>{body}" if body else ""


def _list(lines: Iterator[str] | Sequence[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def _episode(one: EpisodeEvent) -> str:
    said = "".join(
        f"<dt>{escape(role)}</dt><dd><pre>{escape(text)}</pre></dd>" for role, text in one.transcript
    )
    whose = f", {escape(one.agent)}" if one.agent else ""
    return (
        f"<details><summary>step {one.step}{whose}: return {one.episode_return:+.3f}, "
        f"{escape(one.stop_reason)}, seed {one.seed}</summary><dl>{said}</dl></details>"
    )
