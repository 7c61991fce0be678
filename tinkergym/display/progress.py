"""Progress on a terminal: a job's as a live display or plain lines, and that of episodes as a bar.

A job's display reads events and prints. It neither calls the service nor makes decisions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

from pydantic import JsonValue
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tinkergym.display.html import condense
from tinkergym.schema.events import (
    CheckpointEvent,
    EvaluationEvent,
    Event,
    JobState,
    SettingsUpdate,
    StateEvent,
    StepEvent,
    UpdateEvent,
    WarningEvent,
)
from tinkergym.schema.jobs.spec import JobSpec

BLOCKS = " ▁▂▃▄▅▆▇█"
CURVE_COLUMNS = 40
_MOST_UPDATES = 3
"""Changes of settings that the display shows, newest only."""

_MOST_EPISODES = 3
"""Of a warning, that are named."""

PLAYED = {
    "server": "played by the service",
    "client": "played by the client",
    "script": "played by the script",
}
PREFERENCE_METRICS = {"accuracy": ".3f", "reward_margin": "+.4f"}
"""The metric shown for a preference job besides its loss, and its format: how often the chosen completion
wins, and by how much."""
DISTILLATION_METRICS = {"reverse_kl": ".4f"}
"""The same for distillation: the distance between student and teacher."""
WAITS = {
    JobState.QUEUED: "waiting for a worker",
    JobState.STARTING: "loading the model",
    JobState.RUNNING: "working on the first step",
    JobState.WAITING_FOR_CLIENT: "waiting for a client to play the episodes",
    JobState.PAUSED: "paused",
}
WAITS_AGAIN = {
    **WAITS,
    JobState.STARTING: "loading the last checkpoint",
    JobState.RUNNING: "working on the next step",
}
"""The same for a resumed job."""


class TrainingDisplay:
    """Shows events as they come: `with TrainingDisplay(job.id, job.spec) as display: display.show(event)`."""

    def __init__(
        self, job_id: str, spec: JobSpec, *, console: Console | None = None, live: bool = True
    ) -> None:
        """Prepare the display.

        Args:
            job_id: For the title.
            spec: The job's settings.
            console: Where to print; None means standard output.
            live: Whether to redraw a live display on a terminal, instead of printing lines.
        """
        self._job_id, self._spec = job_id, spec
        self._console = console or Console(emoji=False)
        self._live = (
            Live(console=self._console, refresh_per_second=4, transient=False)
            if live and self._console.is_terminal
            else None
        )
        self._step: StepEvent | None = None
        self._state = JobState.QUEUED
        self._reason = ""
        self._attempt = 1
        self._waits = True
        """Whether the job's state changed since its last step, so the remaining time is unknown."""
        self._rewards: dict[str, dict[int, float]] = {}
        """By trained seat; "" if there is one."""
        self._losses: dict[int, float] = {}
        self._evaluations: dict[str, EvaluationEvent] = {}
        self._updates: list[UpdateEvent] = []
        self._alarms: dict[str, int] = {}
        """How many warnings of each kind, failed episodes, and evaluations on trained tasks there were."""

    def __enter__(self) -> Self:
        self._console.print(self._title(), highlight=False, soft_wrap=True)
        if self._live is not None:
            self._live.start()
            self._live.update(self._picture())
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        elif self._alarms:
            self._line(f"alarms: {self._alarm_counts()}; see `tinkergym jobs show {self._job_id}`")

    def watch(self, events: Iterable[Event]) -> list[StepEvent]:
        """Show all events and return the train steps, each once."""
        steps: dict[int, StepEvent] = {}
        for event in events:
            self.show(event)
            if isinstance(event.body, StepEvent):
                steps[event.body.step] = event.body
        return [steps[number] for number in sorted(steps)]

    def show(self, event: Event) -> None:
        """Show one event."""
        body = event.body
        if isinstance(body, StepEvent):
            self._step, self._state, self._reason = body, JobState.RUNNING, ""
            self._waits = False
            for agent, value in body.reward_means().items():
                self._rewards.setdefault(agent, {})[body.step] = value
            if body.loss is not None:
                self._losses[body.step] = body.loss
            self._alarm("failed_episodes", body.failed_episodes)
            self._line(step_line(body))
        elif isinstance(body, StateEvent):
            self._state, self._reason = body.state, body.reason
            self._attempt, self._waits = body.attempt, True
            again = f" (attempt {body.attempt})" if body.attempt > 1 else ""
            self._line(f"{body.state}{again}" + (f": {body.reason}" if body.reason else ""))
        elif isinstance(body, EvaluationEvent):
            self._evaluations[body.name] = body
            self._alarm("evaluation_overlap", 1 if body.overlap else 0)
            self._line(evaluation_line(body))
        elif isinstance(body, UpdateEvent):
            self._updates.append(body)
            self._line(update_line(body))
        elif isinstance(body, WarningEvent):
            self._warn(body)
        elif isinstance(body, CheckpointEvent):
            self._line(f"checkpoint of step {body.step}, on the service's machine: {body.path}")
        if self._live is not None:
            self._live.update(self._picture())

    def _line(self, text: str) -> None:
        if self._live is None:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _warn(self, warning: WarningEvent) -> None:
        """Print the first warning of each kind in full; a live display only counts them."""
        is_new = warning.name not in self._alarms
        self._alarm(warning.name, warning.count)
        if is_new:
            self._console.print(
                f"[yellow]warning[/] {escape(warning.name)}: {escape(warning.message)}"
                f"{escape(such_as(warning.episodes))}",
                highlight=False,
                soft_wrap=True,
            )

    def _alarm(self, name: str, count: int) -> None:
        if count:
            self._alarms[name] = self._alarms.get(name, 0) + count

    def _alarm_counts(self) -> str:
        return "  ".join(f"{name} ×{count}" for name, count in self._alarms.items())

    def _title(self) -> str:
        spec, adapter = self._spec, self._spec.adapter
        trained = f"LoRA rank {adapter.rank}" if adapter.kind == "lora" else "all parameters"
        if spec.samples_only:
            trained = escape(next(iter(spec.references().values()), "untrained"))
        name = f"{escape(spec.name)} · " if spec.name else ""
        if played := spec.played:
            what = escape(played.played_in)
            episodes = f"episodes per step: {played.groups.episodes}, {PLAYED[played.rollout]}"
            steps = f"steps: {spec.steps} · {episodes}"
        elif spec.by_calls:
            what, steps = spec.kind, "trained by its client"
        else:
            records = f"records per step: {spec.records_per_step}"
            what, steps = spec.kind, f"steps: {spec.steps} · {records}"
        return f"{name}[bold]{what}[/] · {escape(spec.model)} · {trained} · {steps} · {escape(self._job_id)}"

    def _picture(self) -> RenderableType:
        done = self._step.step if self._step else 0
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=self._spec.steps, completed=done, width=CURVE_COLUMNS),
            f"step {done}/{self._spec.steps}",
            f"[cyan]{self._time_left()}[/]",
        )
        parts: list[RenderableType] = [bar]
        if self._step is not None:
            parts.append(self._numbers(self._step))
        for evaluation in self._evaluations.values():
            parts.append(Text(evaluation_line(evaluation)))
        parts += [Text(update_line(update)) for update in self._updates[-_MOST_UPDATES:]]
        if self._alarms:
            parts.append(Text(f"alarms  {self._alarm_counts()}", style="yellow"))
        return Group(*parts)

    def _numbers(self, step: StepEvent) -> RenderableType:
        numbers = Table.grid(padding=(0, 2))
        if step.records:
            losses = [self._losses[number] for number in sorted(self._losses)]
            numbers.add_row(
                "loss", f"[bold]{_signed(step.loss, 4)}[/]", Text(sparkline(losses), style="green")
            )
            if metrics := _method_metrics(step):
                numbers.add_row("", "", "   ".join(metrics))
            numbers.add_row(
                "", "", f"{step.tokens_per_second:,.0f} tokens/s   {step.step_seconds:.2f} s/step"
            )
            return numbers
        means = step.reward_means()
        for agent, rewards in self._rewards.items() or [("", dict[int, float]())]:
            numbers.add_row(
                f"reward {agent}".rstrip(),
                f"[bold]{_signed(means.get(agent), 3)}[/]",
                Text(sparkline([rewards[number] for number in sorted(rewards)]), style="green"),
            )
        numbers.add_row(
            "loss",
            _by_agent(step.losses(), 4),
            f"{step.tokens_per_second:,.0f} tokens/s   {step.step_seconds:.2f} s/step   "
            f"{step.failed_episodes} of {step.episodes} episodes failed",
        )
        if metrics := _method_metrics(step):
            numbers.add_row("", "", "   ".join(metrics))
        return numbers

    def _time_left(self) -> str:
        if self._state.final:
            return str(self._state)
        if self._step is None or self._waits:
            again = self._attempt > 1 or self._step is not None
            return self._reason or (WAITS_AGAIN if again else WAITS)[self._state]
        return f"{duration(self._step.seconds_left)} left"


def step_line(step: StepEvent) -> str:
    """Return a train step as one line for a log."""
    if step.records:
        measured = [
            f"{name} {value:+.4f}" for name, value in step.metrics.items() if name.startswith("eval/")
        ]
        metrics = "".join(f"  {metric}" for metric in (*_method_metrics(step), *measured))
        done = f"{step.records} rows" if step.loss is None else f"loss {_signed(step.loss, 4)}"
        return (
            f"step {step.step}/{step.steps}  {done}{metrics}  "
            f"{step.tokens_per_second:,.0f} tokens/s  {duration(step.seconds_left)} left"
        )
    failed = f"  {step.failed_episodes} failed" if step.failed_episodes else ""
    return (
        f"step {step.step}/{step.steps}  reward {_by_agent(step.reward_means(), 3)}  "
        f"loss {_by_agent(step.losses(), 4)}{''.join(f'  {metric}' for metric in _method_metrics(step))}  "
        f"{step.tokens_per_second:,.0f} tokens/s  {duration(step.seconds_left)} left{failed}"
    )


def evaluation_line(done: EvaluationEvent) -> str:
    """Return an evaluation as one line for a log."""
    interval = "" if done.low is None or done.high is None else f" [{done.low:.3f}, {done.high:.3f}]"
    failed = f"  {done.failed_episodes} failed" if done.failed_episodes else ""
    best = "  best so far" if done.best else ""
    if done.overlap:
        best += f"  {done.overlap:.0%} of its tasks are trained on"
    if done.drawn:
        best += "  tasks drawn by seed"
    mean = _signed(done.mean, 3)
    return f"evaluation of step {done.step}  {done.name}  mean return {mean}{interval}{failed}{best}"


def update_line(update: SettingsUpdate) -> str:
    """Return a change of settings as one line for a log."""
    return f"from step {update.from_step}: {update_words(update)}"


def update_words(update: SettingsUpdate) -> str:
    """Return what changed: `learning_rate 0.001 -> 0.0005`."""
    return ", ".join(f"{one.name} {_value(one.old)} -> {_value(one.new)}" for one in update.changes)


def such_as(episodes: Sequence[str]) -> str:
    """Return which episodes a warning is about; empty if it names none."""
    shown = ", ".join(episodes[:_MOST_EPISODES])
    return f" (such as {shown})" if shown else ""


def _value(value: JsonValue) -> str:
    if isinstance(value, dict):
        return " and ".join(f"{part} {name}" for name, part in value.items() if part is not None)
    return "none" if value is None else str(value)


def _method_metrics(step: StepEvent) -> list[str]:
    forms = PREFERENCE_METRICS if step.records else DISTILLATION_METRICS
    return [f"{name} {step.metrics[name]:{form}}" for name, form in forms.items() if name in step.metrics]


def _by_agent(values: Mapping[str, float], digits: int) -> str:
    """Return the number of each seat or policy: `x +0.250 o -0.250`."""
    shown = [f"{agent} {_signed(value, digits)}".lstrip() for agent, value in values.items()]
    return " ".join(shown) or "none"


def _signed(value: float | None, digits: int) -> str:
    return "none" if value is None else f"{value:+.{digits}f}"


@contextmanager
def episodes_shown(
    total: int | None, *, done: int = 0, progress: bool | None = None, what: str = "episodes"
) -> Iterator[Callable[..., None]]:
    """Show the progress of episodes as a bar; nothing if stderr is not a terminal.

    Yields a function to call when an episode has ended; its argument is how many, by default 1.

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


def duration(seconds: float) -> str:
    """Return a duration in readable form: `42 s`, `3 min 05 s`, `2 h 10 min`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def sparkline(values: Sequence[float]) -> str:
    """Draw values as one line of block characters, lowest to highest; neighbours are averaged to fit."""
    shown = condense(values, CURVE_COLUMNS)
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    span = (high - low) or 1.0
    return "".join(BLOCKS[1 + round((value - low) / span * 7)] for value in shown)
