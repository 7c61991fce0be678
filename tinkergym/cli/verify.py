"""`tinkergym verify`: whether a run's certificate, or its bundle, is what was written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tinkergym.cli.console import out
from tinkergym.cli.json_output import AsJson, emit


def verify(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="A certificate's JSON, or a bundle.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Check a run's certificate: the JSON alone, or everything in its bundle.

    Ends with code 1 if something does not fit, or if a check of the run fails. Needs no service.
    """
    from tinkergym.reporting.verification import verify as verified

    found = verified(path)
    if as_json:
        emit(
            {
                "ok": found.ok,
                "checked": found.checked,
                "problems": found.problems,
                "notes": found.notes,
                "checks": found.certificate.checks,
            }
        )
    else:
        out.print(str(found), markup=False, highlight=False, soft_wrap=True)
    if not found.ok:
        raise typer.Exit(1)
