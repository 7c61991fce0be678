"""`tinkergym train`, `sft`, `preference` and `distill`: start a job from the command line."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from tinkergym.cli.console import out
from tinkergym.cli.field_options import SettingOption, with_job_options
from tinkergym.cli.json_output import AsJsonLines, emit
from tinkergym.cli.options import EnvironmentId, OneEnvironment
from tinkergym.cli.settings import parse_settings
from tinkergym.schema.jobs.dataset import PreferenceSpec, SFTSpec
from tinkergym.schema.jobs.distillation import DistillationSpec
from tinkergym.schema.jobs.rl import RLSpec

Detach = Annotated[bool, typer.Option("--detach", help="Start the job without waiting for it.")]
Data = Annotated[str, typer.Argument(metavar="DATA", help="A .jsonl file, one JSON object per line.")]
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

_STEPS = SettingOption(setting="steps", required=True)
_COMMON = (
    SettingOption(setting="model"),
    SettingOption(
        setting="adapter.kind",
        name="full",
        kind=bool,
        flag="full",
        help="Train all parameters instead of a LoRA adapter.",
    ),
    SettingOption(setting="adapter.rank"),
    SettingOption(
        setting="initial_policy", name="from", metavar="JOB_ID", help="Start from this job's policy."
    ),
    SettingOption(setting="seed"),
    SettingOption(
        setting="chat_template",
        kind=Path,
        metavar="FILE",
        help="A Jinja file that replaces the model's own chat template.",
    ),
    SettingOption(
        setting="report_to",
        kind=list[str],
        metavar="TRACKER",
        help="Report every step to a tracker: csv, jsonl, mlflow, tensorboard, trackio or wandb; repeatable.",
    ),
)
_ROLLOUT = SettingOption(
    setting="rollout", kind=str, help="Where episodes are played: server or client; server if possible."
)
_DATASET = (
    SettingOption(setting="steps", help="Train steps; or use --epochs."),
    SettingOption(setting="epochs", kind=float, help="Passes over the dataset; one without --steps."),
    SettingOption(setting="batch_size"),
    SettingOption(setting="learning_rate"),
    SettingOption(setting="held_out"),
    SettingOption(setting="eval_data", metavar="DATA", help="Another file to evaluate on."),
    SettingOption(
        setting="on_overlong",
        name="drop-overlong",
        kind=bool,
        flag="drop",
        help="Drop rows longer than the model's context.",
    ),
    SettingOption(
        setting="ignore",
        kind=list[str],
        metavar="COLUMN",
        help="A column of the dataset to skip; repeatable.",
    ),
    *_COMMON,
)
_LAST_ANSWER = SettingOption(
    setting="answers",
    name="last-answer",
    kind=bool,
    flag="last",
    help="Train only on the last assistant message of a conversation.",
)
_LOSS = SettingOption(setting="loss.name", name="loss", help="dpo, ipo, hinge, simpo or orpo.")
_TRAIN = (
    _STEPS,
    SettingOption(setting="algorithm.group_size"),
    SettingOption(setting="algorithm.groups_per_step", name="groups"),
    SettingOption(setting="algorithm.learning_rate"),
    SettingOption(
        setting="evaluate.steps",
        name="evaluate-every",
        kind=int,
        help="Play 64 held-out episodes every N steps, and before and after training.",
    ),
    _ROLLOUT,
    SettingOption(
        setting="env_kwargs",
        name="env-set",
        kind=list[str],
        metavar="KEY=VALUE",
        help="An argument of the environment; repeatable.",
        read=parse_settings,
    ),
    *_COMMON,
)
_DISTILL = (
    SettingOption(setting="teacher", required=True),
    _STEPS,
    SettingOption(setting="episodes_per_step", name="episodes"),
    SettingOption(setting="learning_rate"),
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
    from tinkergym.cli.following import follow_or_detach
    from tinkergym.cli.named_environment import environments
    from tinkergym.remote.client import Client

    with Client() as client:
        found, names = environments(env, several)
        if estimate:
            expected = client.estimate(found, progress=False if as_json else None, **settings)
            emit(asdict(expected)) if as_json else out.print(str(expected), highlight=False, soft_wrap=True)
            return
        job = client.train(found, **settings)
        follow_or_detach(job, names, detach=detach, as_json=as_json, client=client)


@with_job_options(SFTSpec, "data", (_LAST_ANSWER, *_DATASET))
def sft(
    data: Data, *, settings: dict[str, Any], detach: Detach = False, as_json: AsJsonLines = False
) -> None:
    """Fine-tune on conversations: {"messages": [...]} or {"prompt": ..., "completion": ...} per line.

    Example: tinkergym sft chats.jsonl --epochs 3 --held-out 0.1
    """
    from tinkergym.cli.following import follow_or_detach
    from tinkergym.remote.client import Client

    with Client() as client:
        job = client.sft(data, **settings)
        follow_or_detach(job, detach=detach, as_json=as_json, client=client)


@with_job_options(PreferenceSpec, "data", (_LOSS, *_DATASET))
def preference(
    data: Data, *, settings: dict[str, Any], detach: Detach = False, as_json: AsJsonLines = False
) -> None:
    """Train on preference pairs: {"prompt": ..., "chosen": ..., "rejected": ...} per line.

    Example: tinkergym preference pairs.jsonl --from job-0123456789abcdef --set loss.beta=0.2
    """
    from tinkergym.cli.following import follow_or_detach
    from tinkergym.remote.client import Client

    with Client() as client:
        job = client.preference(data, **settings)
        follow_or_detach(job, detach=detach, as_json=as_json, client=client)


@with_job_options(DistillationSpec, "env", _DISTILL)
def distill(
    env: EnvironmentId, *, settings: dict[str, Any], detach: Detach = False, as_json: AsJsonLines = False
) -> None:
    """Train a student that plays, token by token, towards a teacher's probabilities.

    Example: tinkergym distill board/TicTacToeVs-v0 --teacher job-0123456789abcdef --steps 20
    """
    from tinkergym.cli.following import follow_or_detach
    from tinkergym.cli.named_environment import find_environment
    from tinkergym.remote.client import Client

    with Client() as client:
        job = client.distill(find_environment(env), **settings)
        follow_or_detach(job, env, detach=detach, as_json=as_json, client=client)
