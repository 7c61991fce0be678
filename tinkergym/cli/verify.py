"""`tinkergym verify`: check a run's certificate or its bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tinkergym.certificates.verification import verify as verified
from tinkergym.cli.console import out
from tinkergym.cli.json_output import AsJson, emit


def verify(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="A certificate's JSON, or a bundle.", show_default=False)
    ],
    key: Annotated[
        str | None,
        typer.Option(
            metavar="PUBLIC",
            help="The operator's public key, or a file that contains it; `tinkergym status` shows it. "
            "Without it signatures are not checked.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check a run's certificate: the JSON alone, or everything in its bundle.

    The exit code is 1 if something does not match, a check of the run fails, or --key is given and its owner
    did not sign the certificate. Needs no service.
    """
    found = verified(path, key=key)
    if as_json:
        emit(
            {
                "ok": found.ok,
                "checked": found.checked,
                "signed": found.signed,
                "signed_by": found.certificate.signature and found.certificate.signature.public_key,
                "problems": found.problems,
                "notes": found.notes,
                "checks": found.certificate.checks,
            }
        )
    else:
        out.print(str(found), markup=False, highlight=False, soft_wrap=True)
    if not found.ok:
        raise typer.Exit(1)
