"""`tinkergym keys`: API keys of the service on this machine. Works on its database, running or not."""

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

Tenant = Annotated[str, typer.Option(help="The owner; tenants cannot see each other's data.")]
DataDir = Annotated[
    Path | None, typer.Option(help="The service's data folder, if it is not ~/.tinkergym or $TINKERGYM_HOME.")
]
Config = Annotated[Path | None, typer.Option(help="The service's TOML file.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="A label for the key.")],
    tenant: Tenant = "local",
    *,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="It samples and reads, and changes nothing.")
    ] = False,
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, max=10**12, help="The most sampling requests. (default: no limit)")
    ] = None,
    tokens_per_minute: Annotated[
        int | None,
        typer.Option(
            min=1, max=10**12, help="The most tokens of prompts and completions. (default: no limit)"
        ),
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Create a key and print it. It is shown only once."""
    rights = ["--read-only"] if read_only else []
    if requests_per_minute is not None:
        rights += ["--requests-per-minute", str(requests_per_minute)]
    if tokens_per_minute is not None:
        rights += ["--tokens-per-minute", str(tokens_per_minute)]
    _run(["create", tenant, "--name", name, *rights], data_dir, config, as_json)


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's keys. (default: all)")] = None,
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List keys, without the keys themselves."""
    _run(["list", *([tenant] if tenant else [])], data_dir, config, as_json)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="KEY_ID", help="An id from `tinkergym keys list`.")],
    data_dir: DataDir = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a key, effective immediately."""
    _run(["revoke", key_id], data_dir, config, as_json)


def _run(command: list[str], data_dir: Path | None, config: Path | None, as_json: bool) -> None:
    where = [*(["--json"] if as_json else []), *(["--config", str(config)] if config else [])]
    where += [*(["--set", f"data_dir={data_dir}"] if data_dir else [])]
    run_service_program("backend.app.key_commands", [*where, *command])
