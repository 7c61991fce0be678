"""The command `tinkergym`."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer

from tinkergym import __version__
from tinkergym.cli.console import Commands

COMMANDS = {
    "serve": ("serve:serve", "Start the service on this machine and keep it running until Ctrl-C."),
    "train": ("train:train", "Train a policy and show its progress. Ctrl-C leaves the job running."),
    "train-agent": (
        "train_agent:train_agent",
        "Train a program that speaks the OpenAI API as it is.",
    ),
    "sft": (
        "train:sft",
        'Fine-tune on conversations: {"messages": [...]} or {"prompt": ..., "completion": ...} per line.',
    ),
    "preference": (
        "train:preference",
        'Train on preference pairs: {"prompt": ..., "chosen": ..., "rejected": ...} per line.',
    ),
    "distill": (
        "train:distill",
        "Train a student that plays, token by token, towards a teacher's probabilities.",
    ),
    "status": (
        "status:status",
        "Show whether the service is complete, and the memory of each loaded model.",
    ),
    "export": ("export:export", "Write a trained policy to a folder that transformers and PEFT load."),
    "serve-policy": (
        "serve_policy:serve_policy",
        "Print the URL and name of a policy, and examples for the openai client, curl and litellm.",
    ),
    "verify": (
        "verify:verify",
        "Check a run's certificate: the JSON alone, or everything in its bundle.",
    ),
    "play": ("play:play", "Play an environment yourself, or let a trained policy play."),
    "envs": (
        "envs:envs",
        "List the environments of installed packs, and the entry points that were refused.",
    ),
    "new-env": (
        "new_env:new_env",
        "Write a new pack with a working environment and its test into the folder NAME.",
    ),
    "check": ("check:check", "Check an environment before you train in it or publish it."),
    "eval": (
        "eval:evaluate",
        "Play episodes and print the mean return with its 95 % interval, pass@k, pass^k, and stop reasons.",
    ),
    "generate": (
        "generate:generate",
        "Sample completions of a dataset's rows, one line each, in the order of the rows.",
    ),
    "compare": (
        "compare:compare",
        "Compare two evaluations task by task: B minus A, with a 95 % interval and a p value.",
    ),
    "replay": ("replay:replay", "Show stored episodes: prompts, completions, rewards, and stop reasons."),
    "branch": (
        "branch:branch",
        "Continue a stored episode from one of its turns: by hand, or with a checkpoint or a model.",
    ),
    "view": ("serve:view", "Look at finished runs in a browser, without a service, until Ctrl-C."),
    "tokens": (
        "tokens:tokens",
        "Check that conversations built turn by turn have the tokens of the model's chat template.",
    ),
    "data": ("data:app", "Check datasets before anything is trained on them."),
    "serve-env": ("serve_env:serve_env", "Serve an environment to other machines until Ctrl-C."),
    "jobs": (
        "jobs:app",
        "List jobs, follow them, pause, change, cancel and delete them, fetch their checkpoints.",
    ),
    "backup": (
        "backup:backup",
        "Copy the service's database, checkpoints, uploads and keys, whether or not it runs.",
    ),
    "restore": ("backup:restore", "Make a service from a backup, in a data folder without a database."),
    "migrate": (
        "backup:migrate",
        "Upgrade the database of an older version. Stop the service and make a backup first.",
    ),
    "plan": (
        "plan:plan",
        "Show which model would run on which GPUs, and why others would not. Starts nothing.",
    ),
    "keys": ("keys:app", "Create, list and revoke API keys of the service on this machine."),
}
"""By name: the function or group in `tinkergym.cli`, and the first line of its help."""


class _LazyCommands(Commands):
    """Imports a command when it is run, so that `--help` and the other commands do not wait for it."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name) if name else command, rest


app = typer.Typer(
    cls=_LazyCommands,
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


def load(name: str) -> Any:
    """Return a command with its options, or a group of commands."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    found = getattr(import_module(f"tinkergym.cli.{module}"), attribute)
    if isinstance(found, typer.Typer):
        group = typer.main.get_group(found)
        group.name = name
        return group
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
    alone.command(name)(found)
    return typer.main.get_command(alone)


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


def _listed() -> None:
    """Stands for a command that is not imported."""


for _name, (_, _summary) in COMMANDS.items():
    app.command(_name, help=_summary)(_listed)

if __name__ == "__main__":
    app()
