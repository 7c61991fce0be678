"""`tinkergym eval` of games: cross-play of several players, or the exploitability of policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from tinkergym.cli.game_options import GameOptions
from tinkergym.cli.options import refuse_options
from tinkergym.errors import InvalidRequestError

_SHARED = {"png", "seed", "as_json", "env_setting"}
_TAKES = {
    "crossplay": _SHARED | {"crossplay", "others", "pairs", "temperature"},
    "exploitability": _SHARED | {"exploitability", "greedy"},
}
_NEEDS = {"png": "crossplay", "others": "crossplay", "pairs": "crossplay", "greedy": "exploitability"}


def evaluate_game(env: str, settings: Sequence[str], given: GameOptions, said: Mapping[str, str]) -> None:
    """Evaluate a game as the options say.

    Args:
        env: The game's id.
        settings: `name=value` of the game.
        given: The options for games.
        said: All options that were given, by their parameter's name.

    Raises:
        InvalidRequestError: One of them does not apply here, or it is not a game for several players.
    """
    from tinkergym.cli.eval_crossplay import evaluate_crossplay
    from tinkergym.cli.eval_exploitability import evaluate_exploitability
    from tinkergym.cli.settings import parse_settings
    from tinkergym.registration.games import make_playable
    from tinkergym.schema.parsing import environment_ref

    how = "crossplay" if given.exploitability is None else "exploitability"
    others = [said[name] for name in said if name not in _TAKES[how]]
    also = "; --pairs says how many games" if how == "crossplay" else ""
    refuse_options(others, f"cannot be used with --{how}", hint=f"leave it out{also}")
    reference = environment_ref(env, parse_settings(settings))
    game = make_playable(reference)
    with ExitStack() as stack:
        stack.callback(game.close)
        if len(getattr(game, "possible_agents", ())) < 2:
            raise InvalidRequestError(
                "needs a game for several players", hint="`tinkergym envs` lists games", field=f"--{how}"
            )
        play = evaluate_crossplay if how == "crossplay" else evaluate_exploitability
        play(game, reference, given, stack)


def refuse_of_games(said: Mapping[str, str]) -> None:
    """Refuse options that only have an effect with cross-play or exploitability."""
    for name in _NEEDS.keys() & said.keys():
        refuse_options([said[name]], f"needs --{_NEEDS[name]}", hint="")
