"""`tinkergym sft`, `tinkergym preference` and `tinkergym distill`: the other kinds of jobs."""

from __future__ import annotations

from typing import Annotated

import typer

from tinkergym.cli.json_output import AsJsonLines
from tinkergym.cli.options import ChatTemplateFile, ReportTo

Data = Annotated[str, typer.Argument(metavar="DATA", help="A .jsonl file, one JSON object per line.")]
Model = Annotated[
    str,
    typer.Option(help="A model of the service, a model directory on its machine, or a Hugging Face hub id."),
]
Full = Annotated[bool, typer.Option("--full", help="Train all parameters instead of a LoRA adapter.")]
Rank = Annotated[int | None, typer.Option(help="Rank of the LoRA adapter. (default: 8)")]
Steps = Annotated[int | None, typer.Option(help="Train steps; or use --epochs.")]
Epochs = Annotated[float | None, typer.Option(help="Passes over the dataset. (default: 1, without --steps)")]
BatchSize = Annotated[int | None, typer.Option(help="Rows per step. (default: 32, or all if fewer)")]
Rate = Annotated[float | None, typer.Option(help="Peak learning rate; decays linearly by default.")]
HeldOut = Annotated[
    float | None, typer.Option(help="Fraction of the dataset to evaluate on instead of training.")
]
EvalData = Annotated[str | None, typer.Option(metavar="DATA", help="Another file to evaluate on.")]
Begin = Annotated[str | None, typer.Option("--from", metavar="JOB_ID", help="Start from this job's policy.")]
Seed = Annotated[int | None, typer.Option(help="Seeds all randomness. (default: 0)")]
Drop = Annotated[bool, typer.Option("--drop-overlong", help="Drop rows longer than the model's context.")]
Ignore = Annotated[
    list[str] | None,
    typer.Option(metavar="COLUMN", help="A column of the dataset to skip; repeatable."),
]
Setting = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, e.g. warmup_steps=10; repeatable."),
]
Detach = Annotated[bool, typer.Option("--detach", help="Start the job without waiting for it.")]


def sft(
    data: Data,
    *,
    model: Model = "nano",
    steps: Steps = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    learning_rate: Rate = None,
    full: Full = False,
    rank: Rank = None,
    last_answer: Annotated[
        bool,
        typer.Option("--last-answer", help="Train only on the last assistant message of a conversation."),
    ] = False,
    held_out: HeldOut = None,
    eval_data: EvalData = None,
    begin: Begin = None,
    seed: Seed = None,
    drop_overlong: Drop = False,
    setting: Setting = None,
    chat_template: ChatTemplateFile = None,
    ignore: Ignore = None,
    report_to: ReportTo = None,
    detach: Detach = False,
    as_json: AsJsonLines = False,
) -> None:
    """Fine-tune on conversations: {"messages": [...]} or {"prompt": ..., "completion": ...} per line.

    Example: tinkergym sft chats.jsonl --epochs 3 --held-out 0.1
    """
    from tinkergym.cli.following import follow_or_detach
    from tinkergym.cli.settings import ADAPTER, adapter_settings, with_settings
    from tinkergym.remote.client import Client

    options = {
        "adapter": adapter_settings(full=full, rank=rank),
        "steps": steps,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "answers": "last" if last_answer else None,
        "on_overlong": "drop" if drop_overlong else None,
        "held_out": held_out,
        "eval_data": eval_data,
        "initial_policy": begin,
        "seed": seed,
        "chat_template": chat_template,
        "ignore": ignore or None,
        "report_to": report_to or None,
    }
    with Client() as client:
        job = client.sft(
            data, **with_settings("data", {"model": model, "adapter": ADAPTER}, options, setting)
        )
        follow_or_detach(job, detach=detach, as_json=as_json, client=client)


def preference(
    data: Data,
    *,
    model: Model = "nano",
    loss: Annotated[str | None, typer.Option(help="dpo, ipo, hinge, simpo or orpo. (default: dpo)")] = None,
    steps: Steps = None,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    learning_rate: Rate = None,
    full: Full = False,
    rank: Rank = None,
    held_out: HeldOut = None,
    eval_data: EvalData = None,
    begin: Begin = None,
    seed: Seed = None,
    drop_overlong: Drop = False,
    setting: Setting = None,
    chat_template: ChatTemplateFile = None,
    ignore: Ignore = None,
    report_to: ReportTo = None,
    detach: Detach = False,
    as_json: AsJsonLines = False,
) -> None:
    """Train on preference pairs: {"prompt": ..., "chosen": ..., "rejected": ...} per line.

    Example: tinkergym preference pairs.jsonl --from job-0123456789abcdef --set loss.beta=0.2
    """
    from tinkergym.cli.following import follow_or_detach
    from tinkergym.cli.settings import ADAPTER, adapter_settings, with_settings
    from tinkergym.remote.client import Client

    options = {
        "adapter": adapter_settings(full=full, rank=rank),
        "loss": None if loss is None else {"name": loss},
        "steps": steps,
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "on_overlong": "drop" if drop_overlong else None,
        "held_out": held_out,
        "eval_data": eval_data,
        "initial_policy": begin,
        "seed": seed,
        "chat_template": chat_template,
        "ignore": ignore or None,
        "report_to": report_to or None,
    }
    with Client() as client:
        defaults = {"model": model, "adapter": ADAPTER, "loss": {"name": "dpo"}}
        settings = with_settings("data", defaults, options, setting)
        job = client.preference(data, **settings)
        follow_or_detach(job, detach=detach, as_json=as_json, client=client)


def distill(
    env: Annotated[
        str, typer.Argument(metavar="ENV", help="An environment's id; or your own module:ClassName.")
    ],
    *,
    teacher: Annotated[str, typer.Option(help="A model, or the id of a job, for its policy.")],
    steps: Annotated[int, typer.Option(help="Train steps.")],
    model: Model = "nano",
    episodes: Annotated[int | None, typer.Option(help="Episodes per step. (default: 64)")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="(default: 0.001)")] = None,
    full: Full = False,
    rank: Rank = None,
    rollout: Annotated[
        str | None,
        typer.Option(help="Where episodes are played: server or client. (default: server if possible)"),
    ] = None,
    begin: Begin = None,
    seed: Seed = None,
    setting: Setting = None,
    chat_template: ChatTemplateFile = None,
    report_to: ReportTo = None,
    detach: Detach = False,
    as_json: AsJsonLines = False,
) -> None:
    """Train a student that plays, token by token, towards a teacher's probabilities.

    Example: tinkergym distill board/TicTacToeVs-v0 --teacher job-0123456789abcdef --steps 20
    """
    from tinkergym.cli.following import follow_or_detach
    from tinkergym.cli.settings import ADAPTER, adapter_settings, find_environment, with_settings
    from tinkergym.remote.client import Client

    options = {
        "adapter": adapter_settings(full=full, rank=rank),
        "teacher": teacher,
        "steps": steps,
        "episodes_per_step": episodes,
        "learning_rate": learning_rate,
        "rollout": rollout,
        "initial_policy": begin,
        "seed": seed,
        "chat_template": chat_template,
        "report_to": report_to or None,
    }
    with Client() as client:
        settings = with_settings("env", {"model": model, "adapter": ADAPTER}, options, setting)
        job = client.distill(find_environment(env), **settings)
        follow_or_detach(job, env, detach=detach, as_json=as_json, client=client)
