"""`tinkergym envs`: list installed environments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tinkergym.cli.console import err, out
from tinkergym.cli.json_output import AsJson, emit
from tinkergym.errors import NotFoundError
from tinkergym.registration.listing import ListedEnvironment, list_environments
from tinkergym.registration.packs import Pack, find_packs
from tinkergym.remote.client import Client

_PIPE_COLUMNS = 1000
"""Wide enough for any line: programs that read them would stumble over breaks."""


def envs(
    packs: Annotated[
        list[str] | None, typer.Argument(metavar="[PACK]...", help="Only list these packs. (default: all)")
    ] = None,
    *,
    service: Annotated[
        bool,
        typer.Option("--service", help="List the service's environments, which need not be installed here."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the environments of installed packs, and the entry points that were refused.

    Each environment is created once, so the list also shows which cannot be created. With --service the list
    shows what the service can play, and nothing is created.
    """
    if service:
        _of_service(packs or [], as_json)
        return

    installed = find_packs()
    if unknown := sorted(set(packs or ()) - {name for pack in installed for name in _names(pack)}):
        raise NotFoundError(
            f"there is no installed pack {unknown[0]!r}",
            hint=f"installed: {', '.join(pack.name for pack in installed) or 'none'}",
        )
    shown = [pack for pack in installed if not packs or set(packs) & set(_names(pack))]
    listed = list(list_environments(shown))
    if as_json:
        emit(
            {
                "environments": [environment.to_json() for environment in listed],
                "packs": [_pack_json(pack) for pack in shown],
            }
        )
        return
    if listed:
        _wide().print(_table(listed))
    else:
        out.print("no packs are installed; install one with pip, or start your own: tinkergym new-env NAME")
    _print_failures(listed)
    for pack in shown:
        for refusal in pack.refused:
            err.print(f"[yellow]{escape(refusal)}[/]", soft_wrap=True, highlight=False)


def _pack_json(pack: Pack) -> dict[str, Any]:
    return {
        "name": pack.name,
        "distribution": pack.distribution,
        "version": pack.version,
        "environments": list(pack.environment_ids),
        "games": list(pack.game_ids),
        "refused": list(pack.refused),
    }


def _table(listed: Sequence[ListedEnvironment]) -> Table:
    table = Table(box=None, pad_edge=False)
    # Users copy the id, so it is never cut; other long text wraps on a narrow terminal.
    table.add_column(
        "environment", no_wrap=True, min_width=max((len(one.id) + 2 for one in listed), default=0)
    )
    table.add_column("turns", no_wrap=True)
    table.add_column("data", no_wrap=True)
    table.add_column("spaces", overflow="fold")
    table.add_column("splits", overflow="fold")
    for before, one in pairwise([None, *listed]):
        assert one is not None
        if before is None or before.pack != one.pack or before.distribution != one.distribution:
            # In its own column, a pack's name would be wrapped in every line of a narrow terminal.
            table.add_row(f"[bold]{escape(f'{one.distribution or one.pack} {one.version}')}[/]")
        table.add_row(
            f"  {one.id}",
            one.turns or "-",
            one.data or "-",
            escape(f"{one.observation_space} -> {one.action_space}"),
            " ".join(one.splits) or "-",
        )
    return table


def _print_failures(listed: Sequence[ListedEnvironment]) -> None:
    for one in listed:
        if one.error:
            _warn(f"{one.id} cannot be created", one.error)
    if any(one.id.startswith("pettingzoo/") and "No module named" in one.error for one in listed):
        err.print(
            "PettingZoo's classic games need an extra: pip install '.[pettingzoo]' in a checkout; "
            "`tinkergym envs --service` lists what the service can play",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )


def _of_service(packs: list[str], as_json: bool) -> None:
    with Client() as client:
        found = client.environments()
    known = sorted({one.distribution for one in found})
    if unknown := sorted(set(packs) - set(known)):
        raise NotFoundError(
            f"the service has no pack {unknown[0]!r}", hint=f"it has {', '.join(known) or 'none'}"
        )
    shown = [one for one in found if not packs or one.distribution in packs]
    if as_json:
        emit({"environments": shown})
        return
    for one in shown:
        pack = escape(f"{one.distribution} {one.version}")
        out.print(f"{one.id}  [dim]{pack}[/]", highlight=False, soft_wrap=True)
    if not shown:
        out.print("the service has no environments; use rollout='client' to train in yours")


def _wide() -> Console:
    """Return the console for a table: a pipe has no width, so lines are not wrapped there."""
    if out.is_terminal or "COLUMNS" in os.environ:
        return out
    return Console(file=out.file, width=_PIPE_COLUMNS, emoji=False)


def _names(pack: Pack) -> tuple[str, str]:
    return pack.name, pack.distribution


def _warn(what: str, why: str) -> None:
    err.print(f"[yellow]{escape(what)}[/]: {escape(why)}", soft_wrap=True, highlight=False)
