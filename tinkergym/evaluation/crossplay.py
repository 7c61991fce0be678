"""Cross-play: every player plays every other in mirrored games. Gives a matrix of returns, and ratings.

Two games of the same seed with seats swapped are a pair, so that neither seat nor chance favours anyone. A
policy that was trained for one seat plays that seat only: the same seeds against the same players. In a game
for three or more, others take the seats that neither of two such policies can play.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinkergym.errors import InvalidRequestError, TinkerGymError
from tinkergym.evaluation.matches import GameEnd, Match, MatchResult, Player, play_matches
from tinkergym.evaluation.pictures import draw_crossplay
from tinkergym.evaluation.ratings import PairScore, Ratings, rate
from tinkergym.evaluation.statistics import clustered_interval, finite_ends, game_bounds
from tinkergym.registration.games import make_playable
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.parsing import environment_ref


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """The results of one player against another."""

    row: str
    column: str
    mean_return: float
    """Mean return of the row's player, over games that were finished or forfeited."""
    low: float
    high: float
    """The 95 % interval, with the games of one seed as a cluster."""
    wins: int
    draws: int
    losses: int
    """Finished games in which the row's player earned more than the column's, as much, or less."""
    forfeits_won: int
    forfeits_lost: int
    """Games that ended with an illegal move, by the other or by the row's player."""
    cut_off: int
    failed: int

    @property
    def games(self) -> int:
        """All games."""
        return (
            self.wins
            + self.draws
            + self.losses
            + self.forfeits_won
            + self.forfeits_lost
            + self.cut_off
            + self.failed
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        ends = ("wins", "draws", "losses", "forfeits_won", "forfeits_lost", "cut_off", "failed")
        return {
            "row": self.row,
            "column": self.column,
            "mean_return": self.mean_return if math.isfinite(self.mean_return) else None,
            "interval_95": finite_ends(self.low, self.high),
            **{name: getattr(self, name) for name in ends},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Encounter:
    """A game of a row's player, who has one seat, against a column's, who has all others that it can play."""

    row: int
    column: int
    agent: str
    """The seat of the row's player."""
    rivals: tuple[str, ...]
    """The seats of the column's player."""
    result: MatchResult

    @property
    def own_return(self) -> float:
        """The return of the row's player."""
        return self.result.returns[self.agent]

    @property
    def lead(self) -> float:
        """How much more it earned than the column's player, on average over that one's seats."""
        return self.own_return - math.fsum(self.result.returns[one] for one in self.rivals) / len(self.rivals)

    @property
    def score(self) -> float:
        """1 if the row's player earned more than the column's on average, 0.5 if as much, 0 if less."""
        return _sign(self.lead)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossPlay:
    """All games of some players against each other."""

    game: str
    players: tuple[Player, ...]
    encounters: tuple[Encounter, ...]
    seeds: range
    others: tuple[Player, ...] = ()
    """Who played seats that neither of two players could take."""
    _cells: dict[tuple[int, int], list[Encounter]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for one in self.encounters:
            self._cells.setdefault((one.row, one.column), []).append(one)

    @property
    def names(self) -> list[str]:
        """The players' names, in the order of rows and columns."""
        return [player.name for player in self.players]

    def cell(self, row: str, column: str) -> Cell | None:
        """Return one player's results against another; None if no seat is left for one of them."""
        own = self._cells.get((self.names.index(row), self.names.index(column)))
        return None if own is None else _cell(row, column, own)

    @property
    def failed(self) -> list[MatchResult]:
        """The games that failed."""
        return [one.result for one in self.encounters if one.result.end is GameEnd.FAILED]

    def ratings(self, *, anchor: str | None = None, seed: int = 0) -> Ratings:
        """Rate the players from pairs whose games were all finished with legal moves.

        Args:
            anchor: The player with rating 0; None uses `random` if it plays, else the mean.
            seed: Seed of the bootstrap.

        Raises:
            InvalidRequestError: `anchor` is not one of the players.
        """
        pairs: list[PairScore] = []
        left_out: Counter[str] = Counter({end.value: 0 for end in GameEnd if end is not GameEnd.PLAYED})
        for (row, column), games in self._pairs():
            ends = [one.result.end for one in games]
            if all(end is GameEnd.PLAYED for end in ends):
                score = _sign(math.fsum(one.lead for one in games))
                pairs.append(PairScore(one=row, other=column, score=score))
                continue
            # A single game would rate the seat as well as the player.
            left_out.update(end.value if end is not GameEnd.PLAYED else "half_pair" for end in ends)
        return rate(
            self.names,
            pairs,
            anchor=anchor,
            steps=[player.step for player in self.players],
            left_out=left_out,
            seed=seed,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the matrix as JSON."""
        cells = [self.cell(row, column) for row in self.names for column in self.names]
        return {
            "game": self.game,
            "players": [
                {"name": one.name, "step": one.step, "seats": None if one.seats is None else list(one.seats)}
                for one in self.players
            ],
            "others": [one.name for one in self.others],
            "seeds": [self.seeds.start, self.seeds.stop - 1],
            "cells": [cell.to_json() for cell in cells if cell is not None],
        }

    def to_png(self, path: str | Path) -> Path:
        """Draw the matrix of mean returns.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        cells = [[self.cell(row, column) for column in self.names] for row in self.names]
        return draw_crossplay(Path(path), self.game, self.names, cells)

    def __str__(self) -> str:
        width = max(map(len, self.names))
        lines = [" " * width + "  " + "  ".join(f"{name[-12:]:>12}" for name in self.names)]
        for row in self.names:
            cells = [self.cell(row, column) for column in self.names]
            shown = ["" if one is None else f"{one.mean_return:+.3f}" for one in cells]
            lines.append(f"{row:{width}}  " + "  ".join(f"{text:>12}" for text in shown))
        return "\n".join(lines)

    def _pairs(self) -> Iterator[tuple[tuple[int, int], list[Encounter]]]:
        """Yield the games of two players with one seed: a pair, whatever the number of seats."""
        found: dict[tuple[int, int, int], list[Encounter]] = {}
        seen: set[tuple[int, int, int]] = set()
        for one in self.encounters:
            # A game with one seat for each of two players is in the matrix twice, from both sides.
            if (one.column, one.row, id(one.result)) in seen:
                continue
            seen.add((one.row, one.column, id(one.result)))
            found.setdefault((one.row, one.column, one.result.match.seed), []).append(one)
        for (row, column, _), games in found.items():
            yield (row, column), games


def crossplay(
    players: Sequence[Player],
    game: str | EnvironmentRef,
    *,
    pairs: int = 50,
    seed: int = 0,
    others: Sequence[Player] = (),
    game_kwargs: Mapping[str, Any] | None = None,
    make_game: Any = make_playable,
    max_concurrent: int = 64,
    progress: bool | None = None,
) -> CrossPlay:
    """Let every player play every other.

    Args:
        players: At least two, with different names.
        game: A registered game's id, or a reference with its settings.
        pairs: Seeds per matchup. Each is played once per assignment of seats: in a game for two, twice with
            the seats swapped.
        seed: The first of the seeds.
        others: In a game for three or more, they take the seats that neither of two players can play: each
            the first that can. Without one, the first of `players` that can play any seat does.
        game_kwargs: The game's settings.
        make_game: Creates it from its reference.
        max_concurrent: Games played at once.
        progress: Show on stderr how many have ended; None does so only on a terminal.

    Raises:
        InvalidRequestError: A setting is out of range; its `field` says which.
        TinkerGymError: No game could be finished.
    """
    _check(players, pairs)
    reference = environment_ref(game, dict(game_kwargs or {})) if isinstance(game, str) else game
    made = make_game(reference)
    agents = tuple(getattr(made, "possible_agents", ()))
    made.close()
    seeds = range(seed, seed + pairs)
    listed = {one.name: one for one in players}
    fill = [listed.get(one.name, one) for one in others] + [one for one in players if one.seats is None]
    meetings = list(_meetings(players, agents, fill))
    if not meetings:
        raise InvalidRequestError(
            "no two of the players can play each other: no player is left for some seats",
            hint="add a player that can take any seat, such as random",
            field="players",
        )
    # Of two policies that are bound to a seat, each is the row of the same games.
    seatings = {one.key: one.seats for one in meetings}
    matches = [Match(seats=seats, seed=number) for seats in seatings.values() for number in seeds]
    results = play_matches(
        matches, reference, make_game=make_game, max_concurrent=max_concurrent, progress=progress
    )
    played = {key: results[number * pairs :][:pairs] for number, key in enumerate(seatings)}
    encounters = [
        Encounter(row=one.row, column=one.column, agent=one.agent, rivals=one.rivals, result=result)
        for one in meetings
        for result in played[one.key]
    ]
    if all(one.end is GameEnd.FAILED for one in results):
        raise TinkerGymError(
            f"all {len(results)} games failed; the first: {results[0].error}",
            hint="fix what the error names and play again",
        )
    return CrossPlay(
        game=reference.id,
        players=tuple(players),
        encounters=tuple(encounters),
        seeds=seeds,
        others=tuple(others),
    )


def _check(players: Sequence[Player], pairs: int) -> None:
    if pairs < 1:
        raise InvalidRequestError("there must be at least one pair of games", field="pairs")
    names = [player.name for player in players]
    if len(names) < 2:
        raise InvalidRequestError("cross-play needs at least two players", field="players")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidRequestError(f"{twice!r} is listed twice as a player", field="players")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meeting:
    """A row's player at one seat, and a column's at others."""

    row: int
    column: int
    agent: str
    rivals: tuple[str, ...]
    seats: Mapping[str, Player]
    """Who plays which agent."""

    @property
    def key(self) -> tuple[tuple[str, int], ...]:
        """Equal for two meetings whose games are the same."""
        return tuple(sorted((agent, id(player)) for agent, player in self.seats.items()))


def _meetings(players: Sequence[Player], agents: Sequence[str], fill: Sequence[Player]) -> Iterator[_Meeting]:
    """Yield every way in which two players can meet; `fill` takes the seats that neither can."""
    for row, one in enumerate(players):
        for column, other in enumerate(players):
            for agent in agents if row != column else ():
                if not one.can_play(agent):
                    continue
                rivals = tuple(name for name in agents if name != agent and other.can_play(name))
                taken = {agent: one, **dict.fromkeys(rivals, other)}
                for name in agents:
                    if name not in taken and (free := [each for each in fill if each.can_play(name)]):
                        taken[name] = free[0]
                if rivals and len(taken) == len(agents):
                    yield _Meeting(row=row, column=column, agent=agent, rivals=rivals, seats=taken)


def _cell(row: str, column: str, own: Sequence[Encounter]) -> Cell:
    counted = [one for one in own if one.result.end in {GameEnd.PLAYED, GameEnd.FORFEIT}]
    by_seed: dict[int, list[float]] = {}
    for one in counted:
        by_seed.setdefault(one.result.match.seed, []).append(one.own_return)
    mean, low, high = math.nan, math.nan, math.nan
    if counted:
        mean = math.fsum(one.own_return for one in counted) / len(counted)
        returns = [one.own_return for one in counted]
        low, high = clustered_interval(list(by_seed.values()), bounds=game_bounds(returns))
    ends = Counter(one.result.end for one in own)
    scores = Counter(one.score for one in own if one.result.end is GameEnd.PLAYED)
    lost = sum(one.result.end is GameEnd.FORFEIT and one.agent in one.result.forfeits for one in own)
    return Cell(
        row=row,
        column=column,
        mean_return=mean,
        low=low,
        high=high,
        wins=scores[1.0],
        draws=scores[0.5],
        losses=scores[0.0],
        forfeits_won=ends[GameEnd.FORFEIT] - lost,
        forfeits_lost=lost,
        cut_off=ends[GameEnd.CUT_OFF],
        failed=ends[GameEnd.FAILED],
    )


def _sign(lead: float) -> float:
    # Equal returns may differ by rounding, as sums of rewards in another order.
    return 0.5 if math.isclose(lead, 0.0, abs_tol=1e-9) else float(lead > 0)
