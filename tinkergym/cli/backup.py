"""`tinkergym backup`, `restore` and `migrate`: the whole service on this machine, in one command each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tinkergym.cli.json_output import AsJson
from tinkergym.cli.serve import run_service_program

DataDir = Annotated[
    Path | None, typer.Option(help="The service's data folder, if it is not ~/.tinkergym or $TINKERGYM_HOME.")
]
Config = Annotated[Path | None, typer.Option(help="The service's TOML file.")]
Setting = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Any other setting of the service, as for serve; repeatable."
    ),
]


def backup(
    target: Annotated[
        str, typer.Argument(help="A folder, or s3://bucket/prefix. New, or of an earlier backup.")
    ],
    *,
    data_dir: DataDir = None,
    config: Config = None,
    setting: Setting = None,
    as_json: AsJson = False,
) -> None:
    """Copy the service's database, checkpoints, uploads and keys, whether or not it runs.

    Repeated with the same target, it copies only what is new.
    """
    _run("backup", target, data_dir, config, setting, as_json=as_json)


def restore(
    source: Annotated[str, typer.Argument(help="The target of an earlier `tinkergym backup`.")],
    *,
    data_dir: DataDir = None,
    config: Config = None,
    setting: Setting = None,
    as_json: AsJson = False,
) -> None:
    """Make a service from a backup, in a data folder without a database.

    The checkpoints go where the settings say, which may be another place than before.
    """
    _run("restore", source, data_dir, config, setting, as_json=as_json)


def _run(
    command: str,
    place: str,
    data_dir: Path | None,
    config: Path | None,
    settings: list[str] | None,
    *,
    as_json: bool,
) -> None:
    pairs = [*([f"data_dir={data_dir}"] if data_dir else []), *(settings or [])]
    where = [*(["--json"] if as_json else []), *(["--config", str(config)] if config else [])]
    where += [part for pair in pairs for part in ("--set", pair)]
    run_service_program("backend.app.service_backup", [*where, command, place])


def migrate(
    *,
    data_dir: DataDir = None,
    config: Config = None,
    setting: Setting = None,
    as_json: AsJson = False,
) -> None:
    """Upgrade the database of an older version. Stop the service and make a backup first."""
    settings = [*([f"data_dir={data_dir}"] if data_dir else []), *(setting or [])]
    arguments = [*(["--json"] if as_json else []), *(["--config", str(config)] if config else [])]
    run_service_program(
        "backend.app.migrate", [*arguments, *(part for one in settings for part in ("--set", one))]
    )
