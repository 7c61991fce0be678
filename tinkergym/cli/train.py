"""`tinkergym train`: start a job from the command line."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tinkergym.cli.console import out
from tinkergym.cli.json_output import AsJsonLines, emit
from tinkergym.cli.options import ChatTemplateFile, EnvironmentSettings, OneEnvironment, ReportTo
from tinkergym.cli.written import Begin

_Model = Annotated[
    str,
    typer.Option(help="A model of the service, a model directory on its machine, or a Hugging Face hub id."),
]
_Full = Annotated[bool, typer.Option("--full", help="Train all parameters instead of a LoRA adapter.")]
_GroupSize = Annotated[
    int | None,
    typer.Option(
        help="Episodes per group; they start equal and are compared. (default: 8; 1 for ppo and reinforce++)"
    ),
]
_Groups = Annotated[
    int | None,
    typer.Option(help="Groups per train step. (default: 16; 128 for ppo and reinforce++)"),
]
_Seed = Annotated[
    int | None,
    typer.Option(help="Seeds all randomness. For the same bits, add --set deterministic=true. (default: 0)"),
]
_Rollout = Annotated[
    str | None,
    typer.Option(help="Where episodes are played: server or client. (default: server if possible)"),
]
_Several = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="ENV:WEIGHT",
        help="One of several environments, with its share of the groups; repeatable.",
    ),
]
_EvaluateEvery = Annotated[
    int | None,
    typer.Option(
        help="Play 64 held-out episodes every N steps, and before and after training. (default: never)"
    ),
]
_Estimate = Annotated[
    bool,
    typer.Option(
        "--estimate",
        help="Instead of training, print what it would take, from a few steps that are deleted again.",
    ),
]
_Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any other setting, e.g. sampling.temperature=0.8; repeatable."
    ),
]


def train(
    env: OneEnvironment = None,
    *,
    several: _Several = None,
    steps: Annotated[int, typer.Option(help="Train steps.")],
    model: _Model = "nano",
    full: _Full = False,
    rank: Annotated[int | None, typer.Option(help="Rank of the LoRA adapter. (default: 8)")] = None,
    group_size: _GroupSize = None,
    groups: _Groups = None,
    learning_rate: Annotated[float | None, typer.Option(help="(default: 0.001)")] = None,
    evaluate_every: _EvaluateEvery = None,
    begin: Begin = None,
    seed: _Seed = None,
    rollout: _Rollout = None,
    env_setting: EnvironmentSettings = None,
    setting: _Settings = None,
    chat_template: ChatTemplateFile = None,
    report_to: ReportTo = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start the job without waiting for it.")] = False,
    estimate: _Estimate = False,
    as_json: AsJsonLines = False,
) -> None:
    """Train a policy and show its progress. Ctrl-C leaves the job running.

    Examples: tinkergym train board/TicTacToeVs-v0 --steps 60 --learning-rate 0.002

    tinkergym train --env board/TicTacToeVs-v0:0.7 --env games/NimVs-v0:0.3 --steps 60
    """
    from tinkergym.cli.following import follow_or_detach
    from tinkergym.cli.settings import (
        ADAPTER,
        adapter_settings,
        environments,
        given,
        parse_settings,
        with_settings,
    )
    from tinkergym.remote.client import Client

    algorithm = given(group_size=group_size, groups_per_step=groups, learning_rate=learning_rate)
    options = {
        "steps": steps,
        "algorithm": algorithm,
        "adapter": adapter_settings(full=full, rank=rank),
        "evaluate": {"steps": evaluate_every} if evaluate_every is not None else None,
        "initial_policy": begin,
        "seed": seed,
        "chat_template": chat_template,
        "report_to": report_to or None,
        "rollout": rollout,
        "env_kwargs": parse_settings(env_setting) if env_setting else None,
    }
    settings = with_settings("env", {"model": model, "adapter": ADAPTER}, options, setting)
    with Client() as client:
        found, names = environments(env, several)
        if estimate:
            expected = client.estimate(found, progress=False if as_json else None, **settings)
            emit(asdict(expected)) if as_json else out.print(str(expected), highlight=False, soft_wrap=True)
            return
        job = client.train(found, **settings)
        follow_or_detach(job, names, detach=detach, as_json=as_json, client=client)
