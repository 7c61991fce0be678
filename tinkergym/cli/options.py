"""Arguments and options shared by several commands."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from tinkergym.cli.field_options import SettingOption
from tinkergym.errors import InvalidRequestError

EnvironmentId = Annotated[
    str,
    typer.Argument(
        metavar="ENV",
        help="An environment's id, see `tinkergym envs`; your own module:ClassName; or ws://HOST:PORT.",
    ),
]
OneEnvironment = Annotated[
    str | None,
    typer.Argument(
        metavar="[ENV]",
        help="An environment's id, see `tinkergym envs`; your own module:ClassName; or ws://HOST:PORT.",
        show_default=False,
    ),
]
EnvironmentSettings = Annotated[
    list[str] | None,
    typer.Option("--env-set", metavar="KEY=VALUE", help="An argument of the environment; repeatable."),
]
TemplateSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--template-set",
        metavar="KEY=VALUE",
        help="A variable of the chat template, such as enable_thinking=false; repeatable.",
    ),
]
TRACKERS = "Report every step to a tracker: csv, jsonl, mlflow, tensorboard, trackio or wandb; repeatable."
ReportTo = Annotated[list[str] | None, typer.Option("--report-to", metavar="TRACKER", help=TRACKERS)]
LARGEST_SEED = 2**62
"""Of the first episode, from which the others count up."""
CUT = (SettingOption("top_p"), SettingOption("top_k"))


def options_said(ctx: typer.Context) -> dict[str, str]:
    """Return the options that the command line gives, such as `--top-p`, by their parameter's name."""
    return {
        one.name: max(one.opts, key=len)
        for one in ctx.command.params
        if one.name and one.param_type_name == "option" and _is_said(ctx, one.name)
    }


def _is_said(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def refuse_options(options: Iterable[str], reason: str, *, hint: str = "leave it out") -> None:
    """Refuse the first of some options that were given.

    Raises:
        InvalidRequestError: There is one; it is the field.
    """
    for name in options:
        raise InvalidRequestError(reason, hint=hint, field=name)
