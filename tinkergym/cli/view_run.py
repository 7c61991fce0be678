"""`tinkergym view`: the service's pages over a finished, crashed or copied run, without a service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tinkergym.cli.json_output import AsJsonLines
from tinkergym.cli.serve import run_service_program


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
    as_json: AsJsonLines = False,
) -> None:
    """Look at finished runs in a browser, without a service, until Ctrl-C.

    Nothing in PATH changes.
    Example: tinkergym view run.bundle.tar
    """
    arguments = ["--json"] if as_json else []
    run_service_program("backend.app.run_viewer", [*arguments, str(path), "--port", str(port)])
