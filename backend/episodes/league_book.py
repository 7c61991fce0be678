"""The state of a job's leagues: which versions are kept, and the results against them.

It changes once per step and is saved with the checkpoints, so a resumed job draws the same opponents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backend.episodes.played import Played
from backend.episodes.seat_players import class_of
from tinkergym.schema.fixed_players import League
from tinkergym.schema.ids import PolicyRef, agent_version
from tinkergym.schema.jobs.played_spec import PlayedSpec

Scores = dict[str, tuple[int, float]]
"""`agent@version` of an opponent -> games against it, and points scored: 1 for earning more than it, 0.5 for
the same."""


@dataclass(frozen=True, slots=True)
class Known:
    """The state when the requests of a step are created; implements `LeagueView`."""

    newest: int
    """The newest step whose version may be an opponent."""
    scores: Scores

    def versions(self, agent: str, league: League) -> Sequence[int]:
        """Return the versions that can be drawn, oldest first."""
        del agent
        return snapshots(league, self.newest)

    def beaten_share(self, agent: str, version: int) -> float:
        """Return the share of points scored against a version, pulled towards 0.5 while games are few."""
        games, points = self.scores.get(agent_version(agent, version), (0, 0.0))
        return (points + 1.0) / (games + 2.0)


def snapshots(league: League, newest: int) -> list[int]:
    """Return the snapshots that a league keeps once the version of step `newest` is published."""
    made = list(range(league.snapshot_every, newest + 1, league.snapshot_every))
    rest = made[-(league.most_snapshots - 1) :] if league.most_snapshots > 1 else []
    return [0, *rest]


@dataclass(slots=True)
class LeagueBook:
    """The results of one job's league games, and the state at each of the last steps."""

    spec: PlayedSpec
    _after: dict[int, Scores] = field(default_factory=lambda: {0: {}})
    """The scores after each step, for the steps that future requests depend on."""

    @property
    def lag(self) -> int:
        """How many steps ahead requests may be created: they cannot depend on what happens in between."""
        return max(2, self.spec.versions_ahead + 1)

    def known(self, step: int) -> Known:
        """Return the state that the requests of a step may depend on."""
        newest = max(0, step - self.lag)
        return Known(newest, self._after.get(newest, {}))

    def add(self, step: int, played: Played) -> None:
        """Record the results of a finished step."""
        if not self.spec.leagues:
            return
        scores = dict(self._after.get(step - 1, {}))
        for request, result in played:
            returns = {one.agent: one.episode_return for one in result.trajectories}
            for one in result.trajectories:
                if not (request.seats[one.agent].trained and one.completed):
                    continue
                for opponent, seat in request.seats.items():
                    if opponent != one.agent and class_of(seat.player) == "past":
                        key = agent_version(PolicyRef.parse(seat.policy).agent, seat.policy_version)
                        games, points = scores.get(key, (0, 0.0))
                        scores[key] = games + 1, points + _points(one.episode_return - returns[opponent])
        self._after[step] = scores
        for old in [number for number in self._after if number <= step - self.lag]:
            del self._after[old]

    def is_snapshot(self, step: int) -> bool:
        """Whether the version of a step becomes a snapshot."""
        return any(league.has_past and step % league.snapshot_every == 0 for league in self.spec.leagues)

    def kept(self, step: int) -> set[int]:
        """Return the versions that a later step may still play against, once `step` is done."""
        return {
            version
            for league in self.spec.leagues
            if league.has_past
            for number in range(max(0, step - self.lag), step + 1)
            for version in snapshots(league, number)
        }

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            str(step): {name: list(pair) for name, pair in scores.items()}
            for step, scores in self._after.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self._after = {
            int(step): {name: (int(games), float(points)) for name, (games, points) in scores.items()}
            for step, scores in state.items()
        }


def _points(lead: float) -> float:
    # The sign of a return alone would be meaningless in a game that rewards, or fines, both players.
    return 1.0 if lead > 0 else 0.0 if lead < 0 else 0.5
