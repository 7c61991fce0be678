"""`tinkergym envs`: what is installed here."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from tinkergym.cli.console import err, out


def envs(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="For programs: one JSON object.")] = False,
) -> None:
    """List the environments that installed packs bring along, and the packs that are broken.

    Each is made once, so the list also shows which cannot be.
    """
    from tinkergym.listing import list_environments
    from tinkergym.registration import load_packs

    packs = load_packs()
    listed = list(list_environments())
    if as_json:
        # Not through rich, which would wrap and colour it.
        print(
            json.dumps(
                {
                    "environments": [environment.to_json() for environment in listed],
                    "packs": [
                        {
                            "name": pack.name,
                            "distribution": pack.distribution,
                            "version": pack.version,
                            "environments": list(pack.environment_ids),
                            "error": pack.error,
                        }
                        for pack in packs
                    ],
                },
                indent=2,
            )
        )
        return
    columns = ("environment (game)", "grid cell", "observation", "action", "splits", "pack", "version")
    table = Table(*columns, box=None, pad_edge=False)
    for one in listed:
        table.add_row(
            f"{one.id} ({one.game})" if one.game and one.game != one.id else one.id,
            one.cell or "-",
            escape(one.observation_space),
            escape(one.action_space),
            " ".join(one.splits) or "-",
            one.distribution or one.pack,
            one.version,
        )
    if listed:
        out.print(table)
    else:
        out.print(
            "no packs are installed; install one with pip, or begin one of your own: tinkergym new-env NAME"
        )
    for one in listed:
        if one.error:
            _warn(f"{one.id} cannot be made", one.error)
    for pack in packs:
        if pack.error:
            name = " ".join(filter(None, (pack.distribution or pack.name, pack.version)))
            _warn(f"the pack {name} is broken", pack.error.strip().splitlines()[-1])


def _warn(what: str, why: str) -> None:
    err.print(f"[yellow]{escape(what)}[/]: {escape(why)}", soft_wrap=True, highlight=False)
