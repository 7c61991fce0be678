"""`tinkergym compare`: whether one policy is better than another on the same tasks."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer

from tinkergym.cli.console import out
from tinkergym.cli.json_output import AsJson, emit
from tinkergym.errors import InvalidRequestError
from tinkergym.evaluation.differences import paired_difference
from tinkergym.evaluation.records import Records, read_records
from tinkergym.evaluation.scores import Scores
from tinkergym.evaluation.statistics import finite_ends, interval_text


def compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="A file written by `tinkergym eval --out`.")],
    second: Annotated[
        Path, typer.Argument(metavar="B", help="Another one, with the same environment and seeds.")
    ],
    *,
    common: Annotated[
        bool, typer.Option("--common", help="Ignore tasks that only one of the files has.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare two evaluations task by task: B minus A, with a 95 % interval and a p value.

    Both must have played the same environment with the same seeds, so that luck in the tasks cancels out.
    Each task counts with the mean return of its episodes; the interval is Student's t of the differences.

    Example: tinkergym compare before.jsonl after.jsonl
    """
    one, other = read_records(first), read_records(second)
    _refuse_other_environments(one, other)
    pairs, left_out = _paired(one, other, common=common)
    found = paired_difference(pairs)
    means = [sum(pair[side] for pair in pairs) / len(pairs) for side in (0, 1)]
    if as_json:
        emit(
            {
                "a": {"file": str(first), "mean_return": means[0]},
                "b": {"file": str(second), "mean_return": means[1]},
                "difference": found.mean,
                "interval_95": finite_ends(found.low, found.high),
                "p": found.p,
                "tasks": found.tasks,
                "left_out": left_out,
            }
        )
        return
    clear = "" if found.low > 0 or found.high < 0 else "  (the interval contains 0: no clear difference)"
    if math.isinf(found.low):
        clear = "  (no returns differ, which says nothing about other tasks)"
    lines = [
        f"A  {first}  mean return {means[0]:.3f}",
        f"B  {second}  mean return {means[1]:.3f}",
        f"B - A  {found.mean:+.3f} {interval_text(found.low, found.high, '+.3f')}{_p_text(found.p)}{clear}",
        f"{found.tasks} tasks, paired"
        + (f"; {left_out} ignored, because only one side completed them" if left_out else ""),
    ]
    for line in lines:
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def _p_text(p: float) -> str:
    if math.isnan(p):
        return ""
    return ", p < 0.0001" if p < 0.0001 else f", p = {p:.4f}"


def _refuse_other_environments(one: Records, other: Records) -> None:
    first, second = (_environment(records) for records in (one, other))
    if first != second:
        raise InvalidRequestError(
            f"{one.path} has {first}, {other.path} has {second}",
            hint="compare evaluations of one environment with the same arguments",
        )


def _environment(records: Records) -> Any:
    # A file without settings, written by another program, still names the environment in each line.
    settings = records.settings.get("environment")
    if isinstance(settings, dict):
        kwargs = settings.get("kwargs") or {}
        return f"{settings.get('id')} {json.dumps(kwargs, sort_keys=True)}" if kwargs else settings.get("id")
    return ", ".join(sorted({record.environment for record in records.episodes}))


def _paired(one: Records, other: Records, *, common: bool) -> tuple[list[tuple[float, float]], int]:
    first, second = (Scores(records.episodes).task_means for records in (one, other))
    shared = sorted(first.keys() & second.keys())
    left_out = len(first.keys() ^ second.keys())
    if len(shared) < 2:
        raise InvalidRequestError(
            f"{one.path} and {other.path} have {len(shared)} completed tasks in common",
            hint="evaluate both with the same --seed and --tasks",
        )
    if left_out and not common:
        missing = [
            _missing(one, other, second.keys() - first.keys()),
            _missing(other, one, first.keys() - second.keys()),
        ]
        raise InvalidRequestError(
            "; ".join(filter(None, missing)),
            hint="evaluate both with the same --seed and --tasks (the same command continues a run that "
            "was stopped), or compare the others with --common",
        )
    chosen = [
        {record.seed: record.trajectory.task_index for record in records.episodes} for records in (one, other)
    ]
    if any(chosen[0][seed] != chosen[1][seed] for seed in shared):
        raise InvalidRequestError(
            "the files choose tasks differently, so the same seed does not mean the same task",
            hint="evaluate both with --by-index, or both without",
        )
    return [(first[seed], second[seed]) for seed in shared], left_out


def _missing(records: Records, other: Records, tasks: set[int]) -> str:
    """Return why tasks that the other file completed cannot be compared; empty if there are none."""
    failed = len(tasks & {record.seed for record in records.episodes})
    absent = len(tasks) - failed
    lacks = [
        *([f"lacks {absent} of the tasks in {other.path}"] if absent else []),
        *([f"has only failed episodes of {failed} that {other.path} completed"] if failed else []),
    ]
    return f"{records.path} {' and '.join(lacks)}" if lacks else ""
