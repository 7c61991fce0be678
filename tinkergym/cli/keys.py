"""`tinkergym keys`: who may use the service on this machine. Works on its database, running or not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tinkergym.cli.json_output import AsJson
from tinkergym.cli.serve import run_service_program

app = typer.Typer(
    no_args_is_help=True,
    help="Create, list and revoke API keys of the service on this machine.",
)

Tenant = Annotated[str, typer.Option(help="Whose; tenants see nothing of each other.")]
DataDir = Annotated[
    Path | None, typer.Option(help="The service's data folder, if not ~/.tinkergym or $TINKERGYM_HOME.")
]
Config = Annotated[Path | None, typer.Option(help="The TOML file the service is started with.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What the key is for, to find it again.")],
    tenant: Tenant = "local",
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and print it: the only time that it can be read."""
    _run(["create", tenant, "--name", name], data_dir, config, as_json)


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Whose; everybody's unless it is said.")] = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List keys, without the keys themselves."""
    _run(["list", *([tenant] if tenant else [])], data_dir, config, as_json)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="As `tinkergym keys list` shows it.")],
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Make a key void from now on."""
    _run(["revoke", key_id], data_dir, config, as_json)


def _run(command: list[str], data_dir: Path | None, config: Path | None, as_json: bool) -> None:
    where = [*(["--json"] if as_json else []), *(["--config", str(config)] if config else [])]
    where += [*(["--set", f"data_dir={data_dir}"] if data_dir else [])]
    run_service_program("backend.app.keys", [*where, *command])
