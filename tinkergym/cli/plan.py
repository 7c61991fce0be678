"""`tinkergym plan`: which models the service would place where, which the SDK does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tinkergym.cli.json_output import AsJson
from tinkergym.cli.keys import Config
from tinkergym.cli.serve import run_service_program


def plan(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL]...", help="Names, folders or hub ids. (default: the service's)"),
    ] = None,
    *,
    nodes: Annotated[
        Path | None,
        typer.Option(
            help="A YAML, TOML or JSON file with other nodes. (default: this machine, or the cluster)"
        ),
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="Print instead which model fits on which GPUs.")
    ] = False,
    config: Config = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As for serve; repeatable.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which model would run on which GPUs, and why others would not. Starts nothing.

    Computed as if nothing ran yet. The exit code is 1 if a model has no place.
    """
    arguments = [*(["--json"] if as_json else []), *(["--table"] if table else [])]
    arguments += [*(["--config", str(config)] if config else []), *(["--nodes", str(nodes)] if nodes else [])]
    arguments += [part for one in setting or [] for part in ("--set", one)]
    run_service_program("backend.app.planned", [*arguments, "--", *(models or [])])
