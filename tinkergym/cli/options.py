"""Arguments and options shared by several commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
ChatTemplateFile = Annotated[
    Path | None,
    typer.Option(
        "--chat-template", metavar="FILE", help="A Jinja file that replaces the model's own chat template."
    ),
]
ReportTo = Annotated[
    list[str] | None,
    typer.Option(
        "--report-to",
        metavar="TRACKER",
        help="Report every step to a tracker: csv, jsonl, mlflow, tensorboard, trackio or wandb; repeatable.",
    ),
]
TopP = Annotated[
    float | None,
    typer.Option(
        help="Sample only from the smallest set of likeliest tokens with this total probability, up to 1."
    ),
]
TopK = Annotated[
    int | None, typer.Option(help="Sample only from this many of the likeliest tokens; 0 means all.")
]
