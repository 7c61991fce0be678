"""`tinkergym train`, `sft`, `preference` and `distill`: start a job from the command line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tinkergym.cli.console import out
from tinkergym.cli.field_options import SettingOption, with_job_options
from tinkergym.cli.following import follow_or_detach
from tinkergym.cli.json_output import AsJsonLines, emit
from tinkergym.cli.key_value_settings import parse_settings
from tinkergym.cli.named_environment import environments, find_environment
from tinkergym.cli.options import TRACKERS, EnvironmentId, OneEnvironment
from tinkergym.remote.client import Client
from tinkergym.remote.job import Job
from tinkergym.schema.jobs.dataset import PreferenceSpec, SFTSpec
from tinkergym.schema.jobs.distillation import DistillationSpec
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.preference_losses import PREFERENCE_LOSSES

Detach = Annotated[bool, typer.Option("--detach", help="Start the job without waiting for it.")]
Data = Annotated[
    str,
    typer.Argument(metavar="DATA", help="A data file or folder: JSON lines or array, Parquet, Arrow, CSV."),
]
_Several = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="ENV:WEIGHT",
        help="One of several environments, with its share of the groups; repeatable.",
    ),
]
_Estimate = Annotated[
    bool,
    typer.Option(
        "--estimate",
        help="Instead of training, print what it would take, from a few steps that are deleted again.",
    ),
]

_STEPS = SettingOption("steps", required=True)
_COMMON = (
    SettingOption("model"),
    SettingOption(
        "adapter.kind", "Train all parameters instead of a LoRA adapter.", name="full", kind=bool, flag="full"
    ),
    SettingOption("adapter.rank"),
    SettingOption(
        "initial_policy",
        "Start from this job's policy, or from a PEFT adapter: a folder or a hub id.",
        name="from",
        metavar="POLICY",
    ),
    SettingOption("seed"),
    SettingOption("name"),
    SettingOption(
        "chat_template", "A Jinja file that replaces the model's own template.", kind=Path, metavar="FILE"
    ),
    SettingOption(
        "template_variables",
        "A variable of the chat template, such as enable_thinking=false; repeatable.",
        name="template-set",
        kind=list[str],
        metavar="KEY=VALUE",
        read=parse_settings,
    ),
    SettingOption("template_date"),
    SettingOption("report_to", TRACKERS, kind=list[str], metavar="TRACKER"),
)
_ROLLOUT = SettingOption("rollout", "Where episodes are played: server, if possible, or client.")
_DATASET = (
    SettingOption("steps", "Train steps; or use --epochs."),
    SettingOption("epochs", "Passes over the dataset; one without --steps.", kind=float),
    SettingOption("batch_size"),
    SettingOption("learning_rate"),
    SettingOption("held_out"),
    SettingOption("eval_data", "Another file to evaluate on.", metavar="DATA"),
    SettingOption(
        "on_overlong",
        "Drop rows longer than the model's context.",
        name="drop-overlong",
        kind=bool,
        flag="drop",
    ),
    SettingOption("ignore", "A column of the dataset to skip; repeatable.", kind=list[str], metavar="COLUMN"),
    *_COMMON,
)
_LAST_ANSWER = SettingOption(
    "answers",
    "Train only on the last assistant message of a conversation.",
    name="last-answer",
    kind=bool,
    flag="last",
)
_EVALUATED = SettingOption(
    "evaluate.steps",
    "Play held-out episodes every N steps, and before and after training.",
    name="evaluate-every",
    kind=int,
)
EPISODES = (
    _STEPS,
    SettingOption("algorithm.group_size"),
    SettingOption("algorithm.groups_per_step", name="groups"),
    SettingOption("algorithm.learning_rate"),
    _EVALUATED,
    *_COMMON,
)
"""Options of jobs that learn from episodes, wherever these are played."""
_TRAIN = (
    *EPISODES[:5],
    _ROLLOUT,
    SettingOption(
        "env_kwargs",
        "An argument of the environment; repeatable.",
        name="env-set",
        kind=list[str],
        metavar="KEY=VALUE",
        read=parse_settings,
    ),
    *_COMMON,
)
_DISTILL = (
    SettingOption("teacher", required=True),
    _STEPS,
    SettingOption("episodes_per_step", name="episodes"),
    SettingOption("learning_rate"),
    _ROLLOUT,
    *_COMMON,
)


@with_job_options(RLSpec, "env", _TRAIN)
def train(
    env: OneEnvironment = None,
    *,
    several: _Several = None,
    settings: dict[str, Any],
    detach: Detach = False,
    estimate: _Estimate = False,
    as_json: AsJsonLines = False,
) -> None:
    """Train a policy and show its progress. Ctrl-C leaves the job running.

    Examples: tinkergym train board/TicTacToeVs-v0 --steps 60 --learning-rate 0.002

    tinkergym train --env board/TicTacToeVs-v0:0.7 --env games/NimVs-v0:0.3 --steps 60
    """
    found, names = environments(env, several)
    if not estimate:
        _start(lambda client: client.train(found, **settings), names, detach=detach, as_json=as_json)
        return
    with Client() as client:
        expected = client.estimate(found, progress=False if as_json else None, **settings)
        emit(asdict(expected)) if as_json else out.print(str(expected), highlight=False, soft_wrap=True)


@with_job_options(SFTSpec, "data", (_LAST_ANSWER, *_DATASET))
def sft(
    data: Data, *, settings: dict[str, Any], detach: Detach = False, as_json: AsJsonLines = False
) -> None:
    """Fine-tune on conversations: {"messages": [...]} or {"prompt": ..., "completion": ...} per line.

    Example: tinkergym sft chats.jsonl --epochs 3 --held-out 0.1
    """
    with _dataset_printed(as_json=as_json):
        _start(lambda client: client.sft(data, **settings), detach=detach, as_json=as_json)


@with_job_options(
    PreferenceSpec,
    "data",
    (SettingOption("loss.name", f"{', '.join(PREFERENCE_LOSSES)}.", name="loss"), *_DATASET),
)
def preference(
    data: Data, *, settings: dict[str, Any], detach: Detach = False, as_json: AsJsonLines = False
) -> None:
    """Train on preference pairs: {"prompt": ..., "chosen": ..., "rejected": ...} per line.

    Example: tinkergym preference pairs.jsonl --from job-0123456789abcdef --set loss.beta=0.2
    """
    with _dataset_printed(as_json=as_json):
        _start(lambda client: client.preference(data, **settings), detach=detach, as_json=as_json)


@with_job_options(DistillationSpec, "env", _DISTILL)
def distill(
    env: EnvironmentId, *, settings: dict[str, Any], detach: Detach = False, as_json: AsJsonLines = False
) -> None:
    """Train a student that plays, token by token, towards a teacher's probabilities.

    Example: tinkergym distill board/TicTacToeVs-v0 --teacher job-0123456789abcdef --steps 20
    """

    def start(client: Client) -> Job:
        return client.distill(find_environment(env), **settings)

    _start(start, [env], detach=detach, as_json=as_json)


class _Printing(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        out.print(record.getMessage(), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _dataset_printed(*, as_json: bool) -> Iterator[None]:
    """Print how a dataset is read: what holds it, and in which layouts its rows are."""
    log, handler = logging.getLogger("tinkergym.remote.dataset_upload"), _Printing()
    if as_json:
        yield
        return
    before = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def _start(start: Callable[[Client], Job], env: Sequence[str] = (), *, detach: bool, as_json: bool) -> None:
    with Client() as client:
        follow_or_detach(start(client), env, detach=detach, as_json=as_json, client=client)
