"""`tinkergym serve`: hands over to the service, which the SDK otherwise does not import."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from tinkergym.cli import json_output
from tinkergym.cli.json_output import AsJsonLines
from tinkergym.errors import InvalidRequestError, ServiceUnavailableError


def serve(
    *,
    host: Annotated[str | None, typer.Option(help="Address to listen on. (default: 127.0.0.1)")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on. (default: 8265)")] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Where jobs, checkpoints and keys are kept. (default: $TINKERGYM_HOME, or ~/.tinkergym)"
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file with the service's settings.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other setting; repeatable.")
    ] = None,
    role: Annotated[
        Literal["all", "gateway", "scheduler"],
        typer.Option(help="What to run here, if several machines share one database."),
    ] = "all",
    as_json: AsJsonLines = False,
) -> None:
    """Start the service on this machine and keep it running until Ctrl-C.

    Clients on this machine find it automatically; others need TINKERGYM_URL and a key from `tinkergym keys`.
    """
    options = {"host": host, "port": port, "data_dir": data_dir}
    said = {name: value for name, value in options.items() if value is not None}
    for name in (pair.partition("=")[0] for pair in setting or []):
        if name in said:
            raise InvalidRequestError(
                f"{name} is given twice, by its option and by --set",
                hint="give it once",
                field="--set",
            )
    settings = [*(f"{name}={value}" for name, value in said.items()), *(setting or [])]
    arguments = [*(["--json"] if as_json else []), *(["--config", str(config)] if config else [])]
    arguments += ["--role", role] if role != "all" else []
    run_service_program(
        "backend.app.supervisor", [*arguments, *(part for s in settings for part in ("--set", s))]
    )


def run_service_program(module: str, arguments: list[str]) -> None:
    """Replace this process with the service, which then handles signals and the exit code.

    Raises:
        ServiceUnavailableError: The service is not installed.
    """
    missing = [name for name in ("fastapi", "sqlalchemy", "ray", "torch") if not _installed(name)]
    if missing or not _installed("backend"):
        lacking = f": {', '.join(missing)} missing" if missing else ""
        raise ServiceUnavailableError(
            f"the service is not installed here{lacking}",
            hint="in a checkout of tinkergym: make install, or pip install '.[backend]' (without a GPU after "
            "pip install torch --index-url https://download.pytorch.org/whl/cpu)",
        )
    sys.stdout.flush()
    json_output.hand_back()
    os.execv(sys.executable, [sys.executable, "-m", "backend.processes.quick_start", module, *arguments])


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def view(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A bundle that job.certificate(bundle=...) wrote, or a service's data folder.",
        ),
    ],
    *,
    port: Annotated[
        int, typer.Option(help="Port to listen on, on this machine only. (default: a free one)")
    ] = 0,
    tenant: Annotated[
        str, typer.Option(help="Whose runs of a data folder. (default: local, or the only tenant with runs)")
    ] = "",
    as_json: AsJsonLines = False,
) -> None:
    """Look at finished runs in a browser, without a service, until Ctrl-C.

    Nothing in PATH changes.
    Example: tinkergym view run.bundle.tar
    """
    arguments = [*(["--json"] if as_json else []), *(["--tenant", tenant] if tenant else [])]
    run_service_program("backend.app.run_viewer", [*arguments, str(path), "--port", str(port)])
