"""`tinkergym train`: a job from the command line."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tinkergym.cli.console import out
from tinkergym.wire import PlayedSpec


def train(
    env: Annotated[
        str,
        typer.Argument(
            metavar="ENV", help="An environment's id, see `tinkergym envs`; or module:ClassName of your own."
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
        int | None, typer.Option(help="Episodes that start equal and are compared. (default: 8)")
    ] = None,
    groups: Annotated[int | None, typer.Option(help="Groups in a train step. (default: 16)")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="(default: 0.001)")] = None,
    seed: Annotated[int | None, typer.Option(help="Makes the job repeatable. (default: 0)")] = None,
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
    from tinkergym.cli.following import attach_command, follow
    from tinkergym.cli.settings import find_environment, merged, parse_settings
    from tinkergym.remote.client import Client

    algorithm = _given(group_size=group_size, groups_per_step=groups, learning_rate=learning_rate)
    adapter = {"kind": "full"} if full else {"kind": "lora", **_given(rank=rank)}
    settings = merged(
        {"steps": steps, "model": model, "algorithm": algorithm, "adapter": adapter},
        _given(seed=seed),
        parse_settings(setting or []),
    )
    with Client() as client:
        job = client.train(
            find_environment(env),
            rollout=rollout,
            env_kwargs=parse_settings(env_setting or []),
            **settings,
        )
        if not detach:
            follow(job, env)
            return
        attach = attach_command(job, env)
        out.print(f"job {job.id} is started; see it with: {attach}", highlight=False, soft_wrap=True)
        if isinstance(job.spec, PlayedSpec) and job.spec.rollout == "client":
            job.close()
            out.print("It waits for a client to play its episodes; `attach` does that too.")


def _given(**options: Any) -> dict[str, Any]:
    """Leave out what was not given, so that the schema's own defaults hold."""
    return {name: value for name, value in options.items() if value is not None}
