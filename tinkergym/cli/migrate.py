"""`tinkergym migrate`: upgrades the service's database, which the SDK does not know."""

from __future__ import annotations

from typing import Annotated

import typer

from tinkergym.cli.json_output import AsJson
from tinkergym.cli.keys import Config, DataDir
from tinkergym.cli.serve import run_service_program


def migrate(
    *,
    data_dir: DataDir = None,
    config: Config = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As for serve; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Upgrade the database of an older version. Stop the service and make a backup first."""
    settings = [*([f"data_dir={data_dir}"] if data_dir else []), *(setting or [])]
    arguments = [*(["--json"] if as_json else []), *(["--config", str(config)] if config else [])]
    run_service_program(
        "backend.app.migrate", [*arguments, *(part for one in settings for part in ("--set", one))]
    )
