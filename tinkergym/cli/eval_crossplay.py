"""`tinkergym eval GAME --crossplay ...`: every player plays every other."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tinkergym.cli.console import INTERRUPTED, err, out
from tinkergym.cli.game_options import GameOptions, drawn, names_in, say_picture
from tinkergym.cli.json_output import emit
from tinkergym.errors import InvalidRequestError, ServiceUnreachableError
from tinkergym.schema.ids import PolicyRef

if TYPE_CHECKING:
    from tinkergym.evaluation.crossplay import CrossPlay
    from tinkergym.evaluation.matches import Player
    from tinkergym.remote.client import Client
    from tinkergym.schema.jobs.parts import EnvironmentRef


def evaluate_crossplay(game: Any, reference: EnvironmentRef, options: GameOptions, stack: ExitStack) -> None:
    """Play, print the matrix and the ratings, and draw them.

    Args:
        game: The game.
        reference: Its id and settings.
        options: The command line's options.
        stack: Closes what this opens.
    """
    from tinkergym.evaluation.crossplay import crossplay

    names, fill = names_in(options.crossplay), names_in(options.others)
    players, others = _players(names, fill, game, options.temperature, stack)
    try:
        found = crossplay(players, reference, pairs=options.pairs, seed=options.seed, others=others)
    except KeyboardInterrupt:
        err.print("\nstopped; nothing is stored", highlight=False)
        raise typer.Exit(INTERRUPTED) from None
    _show(found, reference, options)


def _players(
    names: Sequence[str], fill: Sequence[str], game: Any, temperature: float | None, stack: ExitStack
) -> tuple[list[Player], list[Player]]:
    """Return the players, and those for seats that two of them leave free."""
    from tinkergym.evaluation.matches import Player
    from tinkergym.remote.game_players import find_player, is_offered, versions_named

    if len(game.possible_agents) == 2 and fill:
        raise InvalidRequestError(
            "two players take all seats of a game for two", hint="leave it out", field="--others"
        )
    if all(is_offered(game, name) for name in (*names, *fill)):
        players, others = ([Player(name=name, plays=name) for name in some] for some in (names, fill))
        return players, others
    api = stack.enter_context(_client(game, (*names, *fill)))._api
    others = [find_player(api, name, game, temperature=temperature) for name in fill]
    ref = PolicyRef.find(names[0]) if len(names) == 1 else None
    if ref is not None and not ref.has_version:
        versions = versions_named(api, names[0], temperature=temperature)
        scripts = [Player(name=name, plays=name) for name in ("random",) if is_offered(game, name)]
        return [*versions, *scripts], others
    return [find_player(api, name, game, temperature=temperature) for name in names], others


def _client(game: Any, names: Sequence[str]) -> Client:
    from tinkergym.remote.client import Client
    from tinkergym.remote.game_players import is_offered

    try:
        return Client()
    except ServiceUnreachableError as error:
        unknown = next(name for name in names if not is_offered(game, name))
        raise ServiceUnreachableError(
            f"the game has no player {unknown!r}, and policies and models need a service: {error.message}",
            hint=error.hint,
        ) from None


def _show(found: CrossPlay, reference: EnvironmentRef, options: GameOptions) -> None:
    ratings = found.ratings()
    pictures: list[Path] = []
    if options.png is not None:
        beside = options.png.with_name(f"{options.png.stem}-ratings{options.png.suffix or '.png'}")
        pictures = [drawn(found.to_png, options.png), drawn(ratings.to_png, beside)]
    if options.as_json:
        emit({"crossplay": found.to_json(), "ratings": ratings.to_json()})
        return
    header = f"{reference.id}, {options.pairs} pairs of games per matchup"
    out.print(f"{header}; mean return of the row against the column", highlight=False, soft_wrap=True)
    out.print(str(found), markup=False, highlight=False, soft_wrap=True)
    zero = f"{ratings.anchor} = 0" if ratings.anchor else "mean = 0"
    out.print(f"\nratings in Elo points ({zero}) with 95 % intervals", highlight=False)
    out.print(str(ratings), markup=False, highlight=False, soft_wrap=True)
    if found.failed:
        text = f"{len(found.failed)} games failed and are excluded; the first: {found.failed[0].error}"
        out.print(text, markup=False, highlight=False, soft_wrap=True)
    for path in pictures:
        say_picture(path)
