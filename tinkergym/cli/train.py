"""`tinkergym train`: a job from the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from tinkergym.cli.written import Begin


def train(
    env: Annotated[
        str,
        typer.Argument(
            metavar="ENV",
            help="An environment's id, see `tinkergym envs`; module:ClassName of your own; or ws://HOST:PORT.",
        ),
    ],
    *,
    steps: Annotated[int, typer.Option(help="Train steps.")],
    model: Annotated[
        str, typer.Option(help="A model of the service, a model directory there, or a Hugging Face hub id.")
    ] = "nano",
    full: Annotated[
        bool, typer.Option("--full", help="Train all parameters instead of a LoRA adapter.")
    ] = False,
    rank: Annotated[int | None, typer.Option(help="Rank of the LoRA adapter. (default: 8)")] = None,
    group_size: Annotated[
        int | None,
        typer.Option(
            help="Episodes that start equal and are compared. (default: 8; of ppo and reinforce++: 1)"
        ),
    ] = None,
    groups: Annotated[
        int | None,
        typer.Option(help="Groups in a train step. (default: 16; of ppo and reinforce++: 128)"),
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="(default: 0.001)")] = None,
    begin: Begin = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Of all that is drawn. The same bits need --set deterministic=true too. (default: 0)"
        ),
    ] = None,
    rollout: Annotated[
        str | None,
        typer.Option(help="Who plays the episodes: server or client. (default: the server if it can)"),
    ] = None,
    env_setting: Annotated[
        list[str] | None,
        typer.Option("--env-set", metavar="KEY=VALUE", help="An argument of the environment; repeatable."),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Any other setting, e.g. sampling.temperature=0.8; repeatable."
        ),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", help="Start the job and do not wait for it.")] = False,
) -> None:
    """Train a policy and show how it goes. Ctrl-C leaves the job running.

    Example: tinkergym train board/TicTacToeVs-v0 --steps 60 --learning-rate 0.002
    """
    from tinkergym.cli.following import follow_or_detach
    from tinkergym.cli.settings import (
        ADAPTER,
        adapter_settings,
        find_environment,
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
        "initial_policy": begin,
        "seed": seed,
        "rollout": rollout,
        "env_kwargs": parse_settings(env_setting) if env_setting else None,
    }
    settings = with_settings("env", {"model": model, "adapter": ADAPTER}, options, setting)
    with Client() as client:
        job = client.train(find_environment(env), **settings)
        follow_or_detach(job, env, detach=detach)
