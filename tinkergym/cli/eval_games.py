"""`tinkergym eval` of games: cross-play of several players, or the exploitability of policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tinkergym.cli.game_options import GameOptions
from tinkergym.errors import InvalidRequestError


def evaluate_game(env: str, settings: Sequence[str], given: GameOptions, unused: Mapping[str, bool]) -> None:
    """Evaluate a game as the options say.

    Args:
        env: The game's id.
        settings: `name=value` of the game.
        given: The options for games.
        unused: Other options, and whether they were given; they do not apply here.
    """
    from tinkergym.cli.eval_crossplay import evaluate_crossplay
    from tinkergym.cli.eval_exploitability import evaluate_exploitability

    if given.exploitability is not None:
        unused = {
            **unused,
            **given.of_crossplay,
            "--crossplay": given.crossplay is not None,
            "--temperature": given.temperature is not None,
        }
        evaluate_exploitability(env, settings, given, [name for name in unused if unused[name]])
        return
    _refuse_without("--exploitability", {"--greedy": given.greedy})
    evaluate_crossplay(env, settings, given, [name for name in unused if unused[name]])


def refuse_of_games(given: GameOptions) -> None:
    """Refuse options that only have an effect with cross-play or exploitability."""
    _refuse_without("--crossplay", {"--png": given.png is not None, **given.of_crossplay})
    _refuse_without("--exploitability", {"--greedy": given.greedy})


def _refuse_without(option: str, given: Mapping[str, bool]) -> None:
    for name in given:
        if given[name]:
            raise InvalidRequestError(f"needs {option}", field=name)
