"""`tinkergym eval GAME --crossplay ...`: every player plays every other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import typer

from tinkergym.cli.console import INTERRUPTED, err, out
from tinkergym.cli.game_options import GameOptions, drawn, names_in, say_picture
from tinkergym.cli.json_output import emit
from tinkergym.cli.key_value_settings import parse_settings
from tinkergym.cli.options import refuse_options
from tinkergym.errors import InvalidRequestError, ServiceUnreachableError
from tinkergym.evaluation.crossplay import CrossPlay, crossplay
from tinkergym.evaluation.matches import Player
from tinkergym.registration.games import make_playable
from tinkergym.remote.client import Client
from tinkergym.remote.game_players import find_player, is_offered, versions_named
from tinkergym.remote.policy import Policy
from tinkergym.schema.ids import PolicyRef
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.parsing import environment_ref

_TAKES = {
    "crossplay",
    "others",
    "pairs",
    "temperature",
    "png",
    "seed",
    "as_json",
    "env_setting",
    "template_set",
}
_NEED_CROSSPLAY = ("png", "others", "pairs")


def evaluate_crossplay(
    env: str, settings: Sequence[str], options: GameOptions, said: Mapping[str, str]
) -> None:
    """Play, print the matrix and the ratings, and draw them.

    Args:
        env: The game's id.
        settings: `name=value` of the game.
        options: The command line's options for games.
        said: All options that were given, by their parameter's name.

    Raises:
        InvalidRequestError: One of them does not apply here, or it is not a game for several players.
    """
    others = [said[name] for name in said if name not in _TAKES]
    hint = "leave it out; --pairs says how many games"
    refuse_options(others, "cannot be used with --crossplay", hint=hint)
    reference = environment_ref(env, parse_settings(settings))
    game = make_playable(reference)
    with ExitStack() as stack:
        stack.callback(game.close)
        if len(getattr(game, "possible_agents", ())) < 2:
            raise InvalidRequestError(
                "needs a game for several players", hint="`tinkergym envs` lists games", field="--crossplay"
            )
        names, fill = names_in(options.crossplay), names_in(options.others)
        players, others_play = _players(names, fill, game, options.temperature, stack)
        _set_template(options.template_variables, (*players, *others_play))
        try:
            found = crossplay(players, reference, pairs=options.pairs, seed=options.seed, others=others_play)
        except KeyboardInterrupt:
            err.print("\nstopped; nothing is stored", highlight=False)
            raise typer.Exit(INTERRUPTED) from None
        _show(found, reference, options)


def _set_template(variables: Mapping[str, Any], players: Sequence[Player]) -> None:
    policies = [player.plays for player in players if isinstance(player.plays, Policy)]
    if variables and not policies:
        raise InvalidRequestError(
            "none of the players has a chat template", hint="leave it out", field="--template-set"
        )
    for policy in policies:
        policy.template_variables |= variables


def refuse_without_crossplay(said: Mapping[str, str]) -> None:
    """Refuse options that only have an effect with cross-play."""
    refuse_options([said[name] for name in _NEED_CROSSPLAY if name in said], "needs --crossplay", hint="")


def _players(
    names: Sequence[str], fill: Sequence[str], game: Any, temperature: float | None, stack: ExitStack
) -> tuple[list[Player], list[Player]]:
    """Return the players, and those for seats that two of them leave free."""
    if len(game.possible_agents) == 2 and fill:
        raise InvalidRequestError(
            "two players take all seats of a game for two", hint="leave it out", field="--others"
        )
    if all(is_offered(game, name) for name in (*names, *fill)):
        players, others = ([Player(name=name, plays=name) for name in some] for some in (names, fill))
        return players, others
    api = stack.enter_context(_client(game, (*names, *fill))).api
    others = [find_player(api, name, game, temperature=temperature) for name in fill]
    ref = PolicyRef.find(names[0]) if len(names) == 1 else None
    if ref is not None and not ref.has_version:
        versions = versions_named(api, names[0], temperature=temperature)
        scripts = [Player(name=name, plays=name) for name in ("random",) if is_offered(game, name)]
        return [*versions, *scripts], others
    return [find_player(api, name, game, temperature=temperature) for name in names], others


def _client(game: Any, names: Sequence[str]) -> Client:
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
