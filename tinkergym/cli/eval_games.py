"""`tinkergym eval` of games: cross-play of several players, or the exploitability of policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tinkergym.errors import InvalidRequestError

USUAL_PAIRS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class GameOptions:
    """The command line's options for games."""

    crossplay: str | None
    others: str | None
    pairs: int
    exploitability: str | None
    greedy: bool
    png: Path | None
    seed: int
    temperature: float | None
    as_json: bool

    @property
    def wanted(self) -> bool:
        """Whether a game is to be evaluated this way."""
        return self.crossplay is not None or self.exploitability is not None

    @property
    def of_crossplay(self) -> dict[str, bool]:
        """Which options were given that only apply to cross-play."""
        return {"--pairs": self.pairs != USUAL_PAIRS, "--others": self.others is not None}


def evaluate_game(env: str, settings: Sequence[str], given: GameOptions, unused: Mapping[str, bool]) -> None:
    """Evaluate a game as the options say.

    Args:
        env: The game's id.
        settings: `name=value` of the game.
        given: The options for games.
        unused: Other options, and whether they were given; they do not apply here.
    """
    from tinkergym.cli.eval_crossplay import CrossplayOptions, evaluate_crossplay
    from tinkergym.cli.eval_exploitability import ExploitabilityOptions, evaluate_exploitability

    if given.exploitability is not None:
        unused = {
            **unused,
            **given.of_crossplay,
            "--crossplay": given.crossplay is not None,
            "--temperature": given.temperature is not None,
        }
        best = ExploitabilityOptions(
            policies=given.exploitability, greedy=given.greedy, png=given.png, as_json=given.as_json
        )
        evaluate_exploitability(env, settings, best, [name for name in unused if unused[name]])
        return
    _refuse_without("--exploitability", {"--greedy": given.greedy})
    matches = CrossplayOptions(
        players=given.crossplay or "",
        others=given.others or "",
        pairs=given.pairs,
        seed=given.seed,
        temperature=given.temperature,
        png=given.png,
        as_json=given.as_json,
    )
    evaluate_crossplay(env, settings, matches, [name for name in unused if unused[name]])


def refuse_of_games(given: GameOptions) -> None:
    """Refuse options that only have an effect with cross-play or exploitability."""
    _refuse_without("--crossplay", {"--png": given.png is not None, **given.of_crossplay})
    _refuse_without("--exploitability", {"--greedy": given.greedy})


def _refuse_without(option: str, given: Mapping[str, bool]) -> None:
    for name in given:
        if given[name]:
            raise InvalidRequestError(f"needs {option}", field=name)
