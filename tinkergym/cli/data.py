"""`tinkergym data check`: look at a dataset before anything is trained on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tinkergym.cli.console import out
from tinkergym.cli.json_output import AsJson, emit
from tinkergym.cli.named_environment import environment_maker
from tinkergym.datasets.rows import DataSource
from tinkergym.errors import InvalidRequestError
from tinkergym.remote.described_data import describe
from tinkergym.schema.uploaded_data import DataKind
from tinkergym.tasks.grid import tasks_of

app = typer.Typer(
    no_args_is_help=True,
    help="Check datasets before anything is trained on them.",
)


@app.callback()
def _group() -> None:
    """Keeps `check` a command of the group."""


@app.command()
def check(
    data: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="A data file or folder; or an environment, for the tasks it draws from."
        ),
    ],
    *,
    model: Annotated[
        str | None,
        typer.Option(
            help="Render for this model of the service, or directory with a tokenizer. (default: none)"
        ),
    ] = None,
    kind: Annotated[
        str | None, typer.Option(help="sft or preference. (default: found out by the columns)")
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Another split, for rows that are in both; repeatable."),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="A column to skip; repeatable.")
    ] = None,
    played: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Episodes of `tinkergym eval -n 8 --out FILE`: expect how many groups would teach nothing.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a dataset holds, one sample per layout with the trained tokens marked, and its problems.

    The exit code is 1 if there are problems.

    Example: tinkergym data check chats.jsonl --model nano --against test.jsonl
    """
    if kind not in (None, "sft", "preference"):
        raise InvalidRequestError(f"must be sft or preference, not {kind!r}", field="--kind")
    wanted: DataKind | None = kind  # type: ignore[assignment]
    source = _source(data)
    report = describe(
        source,
        model,
        kind=wanted,
        against={name: name for name in against or ()},
        ignore=ignore or (),
        tasks=not isinstance(source, str),
        played=played,
    )
    if as_json:
        emit(report.summary())
    else:
        out.print(str(report), markup=False, highlight=False, soft_wrap=True)
    if not report.ok:
        raise typer.Exit(1)


def _source(name: str) -> DataSource:
    """Return a file's name, or the tasks of an environment."""
    if Path(name).exists() or (":" not in name and not _is_environment(name)):
        return name
    env = environment_maker(name, {})()
    try:
        source = tasks_of(env)
    finally:
        env.close()
    if source is None:
        raise InvalidRequestError(
            f"{name} draws from no tasks, or from several sources", hint="name a data file", field="FILE"
        )
    return source


def _is_environment(name: str) -> bool:
    return name.count("/") == 1 and "-v" in name and not Path(name).suffix
