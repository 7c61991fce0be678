"""The report of a job: results before and after, the reward curve, a game, and where the checkpoint is."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.table import Table

from tinkergym.basics.extras import import_extra
from tinkergym.display.html import condense
from tinkergym.display.progress import BLOCKS
from tinkergym.errors import MissingExtraError
from tinkergym.evaluation.evaluate import Evaluation
from tinkergym.evaluation.statistics import interval_text, share_interval
from tinkergym.schema.events import CheckpointView, Event, StepEvent
from tinkergym.schema.ids import policy_of
from tinkergym.schema.jobs.spec import JobSpec
from tinkergym.schema.names import LOCAL, is_environment_url, local_name

CURVE_ROWS = 8
CURVE_COLUMNS = 60


class ReportedJob(Protocol):
    """What a report needs from a job, such as `tinkergym.Job`."""

    @property
    def id(self) -> str:
        """The job's id."""
        ...

    @property
    def spec(self) -> JobSpec:
        """Its settings."""
        ...

    def events(self) -> Iterable[Event]:
        """All events."""
        ...

    def checkpoints(self) -> list[CheckpointView]:
        """Its checkpoints, oldest first."""
        ...


def show(
    job: ReportedJob,
    before: Evaluation,
    after: Evaluation,
    *,
    picture: str | Path | None = None,
    console: Console | None = None,
) -> None:
    """Print the result of a job that has ended.

    Args:
        job: The job.
        before: Episodes of the untrained model.
        after: Episodes of the trained policy, on the same seeds.
        picture: Where to write the reward curve as PNG; needs matplotlib.
        console: Where to print; None means standard output.
    """
    console = console or Console(emoji=False)
    events = (event.body for event in job.events())
    steps = [body for body in events if isinstance(body, StepEvent) and not body.repeated]
    rewards = reward_curves(steps)
    for agent, means in (rewards or {"": []}).items():
        whose = f" at the seat {agent}" if agent else ""
        console.print(f"\n[bold]Reward of each train step{whose}[/]", highlight=False)
        for line in curve([value for _, value in means]):
            console.print(line, style="green", markup=False, highlight=False)
    if picture is not None:
        console.print(
            save_curve(rewards, Path(picture), title=job.spec.played.played_in if job.spec.played else ""),
            soft_wrap=True,
            highlight=False,
        )
    console.print(f"\n[bold]Before and after, held-out seeds: {len(after.trajectories)}[/]", highlight=False)
    console.print(comparison(before, after))
    played = "game" if after.has_draws else "episode"
    console.print(f"\n[bold]One {played} of the trained policy[/]")
    console.print(after.transcript(0), markup=False, highlight=False)
    for checkpoint in job.checkpoints()[-1:]:
        console.print(f"\ncheckpoint  {checkpoint.path}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"play it     {play_command(job)}", markup=False, highlight=False, soft_wrap=True)


def reward_curves(steps: Iterable[StepEvent]) -> dict[str, list[tuple[int, float]]]:
    """Return each step's number and mean reward, by trained seat; that of a single one is ""."""
    found: dict[str, list[tuple[int, float]]] = {}
    for step in steps:
        for agent, value in step.reward_means().items():
            found.setdefault(agent, []).append((step.step, value))
    return found


def play_command(job: ReportedJob, env: str | None = None) -> str:
    """Return the command to play with, or against, the policy of a job; a program calls it itself.

    Args:
        job: The job.
        env: The environment's name on the command line, if known.
    """
    return play_command_of(job.id, job.spec, env)


def play_command_of(job_id: str, spec: JobSpec, env: str | None = None) -> str:
    """Return the same for a job's id and settings."""
    played = spec.played
    assert played
    if played.environment.is_program:
        return f"{_program()} serve-policy {policy_of(job_id, played.trained_agents[0])}"
    env_id = played.environment.id
    # On the command line, a user's own class is named with its module.
    where = f"MODULE:{local_name(env_id)}" if env_id.startswith(LOCAL) else env_id
    named = env or where
    kwargs = played.environment.kwargs
    if is_environment_url(named):
        # The address locates the environment, and the token is not stored with the job.
        kwargs = {**{key: value for key, value in kwargs.items() if key != "url"}, "token": "..."}
    settings = "".join(
        f" --env-set {shlex.quote(f'{key}={json.dumps(value)}')}" for key, value in kwargs.items()
    )
    return f"{_program()} play {named} --policy {job_id}{settings}"


def _program() -> str:
    """Return how to call the command line here: it may be installed in a `.venv` that is not activated."""
    beside = Path(sys.executable).with_name("tinkergym")
    if shutil.which("tinkergym") or not beside.exists():
        return "tinkergym"
    inside = beside.is_relative_to(Path.cwd())
    return shlex.quote(str(beside.relative_to(Path.cwd()) if inside else beside))


def comparison(before: Evaluation, after: Evaluation) -> Table:
    """Return wins, draws and losses, or how many returns were positive, and the mean returns.

    With 95 % intervals.
    """
    table = Table("", "before", "after", box=None, pad_edge=False)
    counts = [("return above 0", "wins")]
    if before.has_draws or after.has_draws:
        counts = [("win", "wins"), ("draw", "draws"), ("loss", "losses")]
    for name, count in counts:
        table.add_row(name, *(_share(getattr(e, count), len(e.completed)) for e in (before, after)))
    table.add_row(
        "mean return", *(f"{e.mean:+.3f} {interval_text(e.low, e.high, '+.3f')}" for e in (before, after))
    )
    if before.failed or after.failed:
        table.add_row("failed episodes", str(len(before.failed)), str(len(after.failed)))
    return table


def curve(values: Sequence[float], *, rows: int = CURVE_ROWS, columns: int = CURVE_COLUMNS) -> list[str]:
    """Draw values as a chart of block characters, highest value on top; neighbours are averaged to fit."""
    shown = condense(values, columns)
    if not shown:
        return ["no train steps"]
    low, high = min(shown), max(shown)
    span = (high - low) or 1.0
    steps_per_row = len(BLOCKS) - 1
    # The lowest value keeps one level, so that every column is visible.
    heights = [1 + round((value - low) / span * (rows * steps_per_row - 1)) for value in shown]
    lines = []
    for row in reversed(range(rows)):
        cells = (BLOCKS[max(0, min(steps_per_row, height - row * steps_per_row))] for height in heights)
        label = f"{high:+.2f}" if row == rows - 1 else f"{low:+.2f}" if row == 0 else ""
        lines.append(f"{label:>7} ┤{''.join(cells)}")
    return lines


def save_curve(
    curves: Mapping[str, Sequence[tuple[int, float]]],
    path: Path,
    *,
    title: str,
    label: str = "mean return of the step's episodes",
) -> str:
    """Write curves over the steps as PNG; return a sentence with its path, or the missing package."""
    try:
        matplotlib = import_extra("matplotlib.figure", "no picture: it needs matplotlib", extra="plot")
    except MissingExtraError as error:
        return f"{error.message} ({error.hint})"
    # A figure without pyplot: no window system is needed, and no global state remains.
    figure = matplotlib.Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, points in curves.items():
        steps, values = [step for step, _ in points], [value for _, value in points]
        axes.plot(steps, values, color=None if name else "tab:green", label=name or None)
    if len(curves) > 1:
        axes.legend()
    axes.set(title=title, xlabel="train step", ylabel=label)
    axes.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return f"picture     {path}"


def _share(count: int, total: int) -> str:
    low, high = share_interval(count, total)
    return f"{count / total:6.1%} [{low:.1%}, {high:.1%}]"
