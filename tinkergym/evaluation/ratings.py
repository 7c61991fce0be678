"""Ratings from pairs of games: Bradley-Terry, with intervals by bootstrap over pairs.

Pure functions of scores. `crossplay` decides what a pair is and which games count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinkergym.errors import InvalidRequestError
from tinkergym.evaluation.pictures import draw_ratings
from tinkergym.evaluation.statistics import finite_ends, interval_text

ELO = 400 / math.log(10)
"""Elo points per unit of log-odds: 400 points are odds of 10 to 1."""
_PRIOR = 0.02
"""Inverse variance of the normal prior on a log-strength: weak, but enough to keep the rating of a player
that won or lost every game finite."""
_PSEUDO_PAIR = 0.75
"""Weight of a pair that each side of a matchup is assumed to have won, in the bootstrap only.

Chosen by simulation (`benchmarks/coverage.py`): with less, few equal results look too certain."""
_STEPS = 60
_BOOTSTRAPS = 1000

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairScore:
    """The result of a pair of mirrored games: same seed, seats swapped."""

    one: int
    other: int
    """Indices of the players."""
    score: float
    """Score of `one`: 1 if it earned more than the other over the pair's games, 0.5 if as much, 0 if less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rating:
    """A player's rating, in Elo points."""

    name: str
    rating: float
    low: float
    high: float
    """The 95 % interval, by bootstrap over pairs. An end is infinite where the pairs give no bound: the upper
    end of a player that won every pair, the lower end of one that lost every pair, both ends if no chain of
    pairs connects the player with the anchor, or with all others if there is none."""
    pairs: int
    """The number of pairs behind the rating."""
    step: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        found: dict[str, Any] = {"name": self.name, "rating": self.rating}
        found["interval_95"] = finite_ends(self.low, self.high)
        return {**found, "pairs": self.pairs, "step": self.step}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratings:
    """The ratings of several players, best first."""

    ratings: tuple[Rating, ...]
    anchor: str
    """The player with rating 0; empty if the mean is 0."""
    left_out: Mapping[str, int]
    """Number of games that are not rated, by reason: `forfeit`, `cut_off`, `failed`, or `half_pair`."""

    def __getitem__(self, name: str) -> Rating:
        return next(one for one in self.ratings if one.name == name)

    def __str__(self) -> str:
        width = max((len(one.name) for one in self.ratings), default=0)
        lines = [
            f"{one.name:{width}}  {one.rating:+7.0f}  {interval_text(one.low, one.high, '+.0f')}  "
            f"{one.pairs} pairs"
            for one in self.ratings
        ]
        unrated = ", ".join(f"{count} {why}" for why, count in self.left_out.items() if count)
        return "\n".join([*lines, *([f"not rated: {unrated}"] if unrated else [])])

    def over_time(self) -> list[Rating]:
        """Return the ratings of versions, by train step."""
        versions = [one for one in self.ratings if one.step is not None]
        return sorted(versions, key=lambda one: (one.step or 0, one.name))

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return {
            "scale": "Elo points; 400 are odds of 10 to 1",
            "anchor": self.anchor,
            "ratings": [one.to_json() for one in self.ratings],
            "not_rated": dict(self.left_out),
        }

    def to_png(self, path: str | Path) -> Path:
        """Draw the ratings, over train steps if the players are versions of a policy.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        return draw_ratings(Path(path), self.ratings, self.over_time(), self.anchor)


def bradley_terry(wins: Array) -> Array:
    """Return the log-strengths of players from how often each beats each other.

    The probability that i beats j is the logistic function of the difference of their strengths; a draw is
    half a win for each. A weak normal prior keeps them finite, and Newton's method finds their maximum.

    Args:
        wins: [..., n, n]; element i, j is the score of i against j.

    Returns:
        [..., n], in nats, with the mean 0.

    Source:
        Bradley and Terry, Biometrika 39 (1952).
    """
    wins = np.asarray(wins, dtype=np.float64)
    count = wins.shape[-1]
    games = wins + np.swapaxes(wins, -1, -2)
    theta = np.zeros(wins.shape[:-1])
    diagonal = np.arange(count)
    for _ in range(_STEPS):
        expected = 1 / (1 + np.exp(-(theta[..., :, None] - theta[..., None, :])))
        gradient = (wins - games * expected).sum(-1) - _PRIOR * theta
        weight = games * expected * (1 - expected)
        hessian = -weight
        hessian[..., diagonal, diagonal] += weight.sum(-1) + _PRIOR
        step = np.linalg.solve(hessian, gradient[..., None])[..., 0]
        # A long Newton step can overshoot if nearly all games were won.
        step = np.clip(step, -1.0, 1.0)
        theta = theta + step
        if np.abs(step).max(initial=0.0) < 1e-10:
            break
    return np.asarray(theta - theta.mean(-1, keepdims=True))


def rate(
    names: Sequence[str],
    pairs: Sequence[PairScore],
    *,
    anchor: str | None = None,
    steps: Sequence[int | None] | None = None,
    left_out: Mapping[str, int] | None = None,
    seed: int = 0,
    bootstraps: int = _BOOTSTRAPS,
) -> Ratings:
    """Rate players.

    Args:
        names: The players' names, by index.
        pairs: Their scores.
        anchor: The player with rating 0; None uses `random` if it plays, else the mean.
        steps: The players' train steps.
        left_out: Number of games that do not count, by reason.
        seed: Seed of the bootstrap.
        bootstraps: Number of resamples.

    Raises:
        InvalidRequestError: `anchor` is not one of the players.
    """
    if anchor is None:
        anchor = "random" if "random" in names else ""
    if anchor and anchor not in names:
        raise InvalidRequestError(
            f"{anchor!r} is not one of the players", hint=f"choose one of {', '.join(names)}", field="anchor"
        )
    count = len(names)
    wins, games = _tables(count, pairs)
    strengths = bradley_terry(np.concatenate([wins[None], _resampled(count, pairs, seed, bootstraps)]))
    reference = strengths[:, [names.index(anchor)]] if anchor else 0.0
    points = ELO * (strengths - reference)
    low, high = np.percentile(points[1:], [2.5, 97.5], axis=0)
    chained = _chained(wins)
    # Without an anchor, the mean of all is compared with.
    compared = [names.index(anchor)] if anchor else list(range(count))
    below, above = np.all(chained[:, compared], axis=1), np.all(chained[compared], axis=0)
    found = [
        Rating(
            name=names[i],
            rating=float(points[0, i]),
            low=float(low[i]) if below[i] else -math.inf,
            high=float(high[i]) if above[i] else math.inf,
            pairs=int(games[i]),
            step=None if steps is None else steps[i],
        )
        for i in range(count)
    ]
    return Ratings(
        ratings=tuple(sorted(found, key=lambda one: -one.rating)),
        anchor=anchor,
        left_out=dict(left_out or {}),
    )


def _tables(count: int, pairs: Sequence[PairScore]) -> tuple[Array, Array]:
    wins, games = np.zeros((count, count)), np.zeros(count)
    for pair in pairs:
        wins[pair.one, pair.other] += pair.score
        wins[pair.other, pair.one] += 1 - pair.score
        games[[pair.one, pair.other]] += 1
    return wins, games


def _chained(wins: Array) -> NDArray[np.bool_]:
    """Return for i, j whether i scored against a player that scored against ... j.

    If not, j and all that no such chain leads to could be any number of points above i: the likelihood of the
    pairs only grows with it (Ford, American Mathematical Monthly 64 (1957)).
    """
    chained = (wins > 0) | np.eye(len(wins), dtype=bool)
    for _ in range(len(wins)):
        chained = chained | (chained @ chained)
    return chained


def _resampled(count: int, pairs: Sequence[PairScore], seed: int, bootstraps: int) -> Array:
    """Return score tables of resampled pairs. Each matchup keeps its number of pairs.

    Two pseudo-pairs, one won by each side, join those of every matchup with less weight than a pair.
    Without them, scores that are all equal would give an interval of width 0.
    """
    rng = np.random.default_rng([seed, 7])
    result = np.zeros((bootstraps, count, count))
    matchups: dict[tuple[int, int], list[PairScore]] = {}
    for pair in pairs:
        matchups.setdefault((pair.one, pair.other), []).append(pair)
    for (one, other), own in matchups.items():
        weights = np.array([1.0] * len(own) + [_PSEUDO_PAIR] * 2)
        drawn = rng.multinomial(len(own), weights / weights.sum(), size=bootstraps)
        scores = np.array([*(pair.score for pair in own), 0.0, 1.0])
        result[:, one, other] += drawn @ scores
        result[:, other, one] += drawn @ (1 - scores)
    return result
