"""Arguments and options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EnvironmentId = Annotated[
    str,
    typer.Argument(
        metavar="ENV",
        help="An environment's id, see `tinkergym envs`; module:ClassName of your own; or ws://HOST:PORT.",
    ),
]
OneEnvironment = Annotated[
    str | None,
    typer.Argument(
        metavar="[ENV]",
        help="An environment's id, see `tinkergym envs`; module:ClassName of your own; or ws://HOST:PORT.",
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
        "--chat-template", metavar="FILE", help="A Jinja file in place of the model's own chat template."
    ),
]
ReportTo = Annotated[
    list[str] | None,
    typer.Option(
        "--report-to",
        metavar="TRACKER",
        help="Tell a tracker of every step: csv, jsonl, mlflow, tensorboard, trackio or wandb; repeatable.",
    ),
]
TopP = Annotated[
    float | None,
    typer.Option(help="Draw only among the fewest likeliest tokens of so much probability, up to 1."),
]
TopK = Annotated[int | None, typer.Option(help="Draw only among so many of the likeliest tokens; 0 is all.")]
