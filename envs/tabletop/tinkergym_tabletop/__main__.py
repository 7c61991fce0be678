"""`python -m tinkergym_tabletop exploitability GAME POLICIES`: what a best response wins against policies."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from tinkergym.cli.console import Commands, out
from tinkergym.cli.game_options import drawn, names_in, say_picture
from tinkergym.cli.json_output import AsJson, emit
from tinkergym.cli.key_value_settings import parse_settings
from tinkergym.cli.options import EnvironmentSettings
from tinkergym.errors import InvalidRequestError
from tinkergym.registration.games import make_playable
from tinkergym.remote.client import Client
from tinkergym.schema.parsing import environment_ref
from tinkergym_tabletop.exploitability_curve import ExploitabilityCurve, Lineup, exploitability_curve
from tinkergym_tabletop.lineups import lineups_named

_RANDOM = "random"
"""Every legal action with the same probability."""

app = typer.Typer(cls=Commands, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def before_the_command() -> None:
    """Measure policies of small games."""


@app.command()
def exploitability(
    game: Annotated[str, typer.Argument(metavar="GAME", help="A game's id, see `tinkergym envs`.")],
    policies: Annotated[
        str,
        typer.Argument(
            metavar="POLICY,POLICY,...", help="JOB_ID (all stored versions), JOB_ID@40, MODEL or random."
        ),
    ],
    *,
    greedy: Annotated[
        bool, typer.Option("--greedy", help="Of play at temperature 0, in games of any size it can visit.")
    ] = False,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it as a picture.")] = None,
    env_setting: EnvironmentSettings = None,
    as_json: AsJson = False,
) -> None:
    """Compute what a best response wins against each policy, exactly; nothing is sampled."""
    reference = environment_ref(game, parse_settings(env_setting or []))
    table = make_playable(reference)
    with ExitStack() as stack:
        stack.callback(table.close)
        if len(getattr(table, "possible_agents", ())) < 2:
            raise InvalidRequestError(
                "needs a game for several players", hint="`tinkergym envs` lists games", field="GAME"
            )
        lineups = _lineups(policies, table, stack)
        found = exploitability_curve(table, lineups, name=reference.id, greedy=greedy)
    picture = None if png is None else drawn(found.to_png, png)
    if as_json:
        emit(found.to_json())
        return
    _show(found, greedy=greedy)
    if picture is not None:
        say_picture(picture)


def _lineups(names: str, game: Any, stack: ExitStack) -> list[Lineup]:
    client = None
    found: list[Lineup] = []
    for name in names_in(names):
        if name == _RANDOM:
            found.append(Lineup(name=name, policies=None))
            continue
        client = client or stack.enter_context(Client())
        found += lineups_named(client.api, name, game)
    if not found:
        raise InvalidRequestError("names no policy", hint="name a job", field="POLICIES")
    return found


def _show(found: ExploitabilityCurve, *, greedy: bool) -> None:
    how = f"play at temperature {0 if greedy else 1}"
    out.print(
        f"{found.game}, exact exploitability of {how}; 0 is an equilibrium", highlight=False, soft_wrap=True
    )
    out.print(str(found), markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    app()
