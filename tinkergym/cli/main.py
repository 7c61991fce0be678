"""The command `tinkergym`."""

from __future__ import annotations

from typing import Annotated

import typer

from tinkergym import __version__
from tinkergym.cli import (
    check,
    compare,
    environments,
    export,
    jobs,
    keys,
    new_env,
    play,
    replay,
    serve,
    serve_env,
    status,
    tokens,
    train,
    verify,
)
from tinkergym.cli import eval as eval_command
from tinkergym.cli.console import Commands

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help=(
        "Train language models in Gymnasium environments.\n\n"
        "First [bold]tinkergym serve[/] starts the service on this machine. Then, in another terminal, "
        "[bold]tinkergym train board/TicTacToeVs-v0 --steps 60[/] trains the small model that comes with it."
    ),
)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"tinkergym {__version__}")
        raise typer.Exit


@app.callback()
def before_the_command(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_say_version),
    ] = False,
) -> None:
    """`--version` is the only option before the command, and has been handled by now."""


app.command()(serve.serve)
app.command()(train.train)
app.command()(train.sft)
app.command()(train.preference)
app.command()(train.distill)
app.add_typer(jobs.app, name="jobs")
app.command()(status.status)
app.command()(export.export)
app.command()(verify.verify)
app.command()(play.play)
app.command(name="envs")(environments.envs)
app.command(name="new-env")(new_env.new_env)
app.command()(check.check)
app.command(name="eval")(eval_command.evaluate)
app.command()(compare.compare)
app.command()(replay.replay)
app.command()(tokens.tokens)
app.command(name="serve-env")(serve_env.serve_env)
app.add_typer(keys.app, name="keys")

if __name__ == "__main__":
    app()
