"""`tinkergym envs`: what is installed here."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from tinkergym.cli.console import err, out


def envs() -> None:
    """List the environments that installed packs bring along."""
    from tinkergym.registration import load_packs

    packs = load_packs()
    table = Table("environment", "pack", "version", box=None, pad_edge=False)
    for pack in packs:
        for env_id in pack.environment_ids:
            table.add_row(env_id, pack.distribution or pack.name, pack.version)
    if any(pack.environment_ids for pack in packs):
        out.print(table)
    else:
        out.print("no packs are installed; install one with pip, or register environments of your own")
    for pack in packs:
        if pack.error:
            reason = pack.error.strip().splitlines()[-1]
            err.print(f"[yellow]{escape(pack.name)} is broken[/]: {escape(reason)}", soft_wrap=True)
