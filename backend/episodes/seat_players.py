"""Who plays each seat of a group's episodes: a pure function of the spec, the step, the group and the league.

A league's state is what is known about past versions when the step's requests are created. It is part of the
checkpoints, so a resumed job draws the same opponents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from tinkergym.schema.episodes import CURRENT
from tinkergym.schema.fixed_players import Base, FixedPlayer, League, Replay
from tinkergym.schema.jobs.played_spec import PlayedSpec
from tinkergym.schema.jobs.seats import SharedWith, Train

_BINDING = 3
"""Last word of the entropy for drawing opponents."""
_STEP = 4
"""Last word of the entropy for distributing a step's groups."""

Share = Literal["anchor", "current", "past"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """The newest version of a policy that the job trains."""

    agent: str
    """The agent whose policy it is."""
    trained: bool = True
    """Whether the policy is trained on this seat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """An earlier version of a policy that the job trains."""

    agent: str
    version: int


SeatPlayer = Current | Past | FixedPlayer | Replay


class LeagueView(Protocol):
    """What a league knows about past versions."""

    def versions(self, agent: str, league: League) -> Sequence[int]:
        """Return the versions that can be drawn, oldest first; always includes 0."""
        ...

    def beaten_share(self, agent: str, version: int) -> float:
        """Return the fraction of points scored against a version of a policy, 0 to 1."""
        ...


def bind(spec: PlayedSpec, step: int, group: int, view: LeagueView) -> dict[str, SeatPlayer]:
    """Return who plays each agent in all episodes of a group.

    Args:
        spec: The job's settings.
        step: Train step.
        group: The group's number. Numbers from `groups_per_step` on replace other groups of the step.
        view: What the league knows when the step's requests are created.
    """
    draw = _Draw(spec=spec, step=step, group=group, view=view)
    players: dict[str, SeatPlayer] = {}
    for number, (agent, seat) in enumerate(spec.seats.items()):
        if isinstance(seat, Train | SharedWith):
            players[agent] = Current(agent=spec.policy_at(agent))
        elif isinstance(seat, League):
            share = share_of(spec, seat, step, group, number=number)
            players[agent] = draw.one(seat, share, seat.of or spec.trained_agents[0], draw.chance(number))
        else:
            players[agent] = seat
    if spec.own_league:
        players.update(draw.opponents(spec.own_league))
    return players


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draw:
    """Draws the opponents of one group."""

    spec: PlayedSpec
    step: int
    group: int
    view: LeagueView

    def chance(self, *more: int) -> np.random.Generator:
        return np.random.default_rng([self.spec.seed, self.step, self.group, *more, _BINDING])

    def opponents(self, league: League) -> dict[str, SeatPlayer]:
        """Return who plays against the single trained seat; empty if all seats of the group are trained."""
        share = share_of(self.spec, league, self.step, self.group)
        if share == "current":
            return {}
        seats, rng = self.spec.learning_seats, self.chance()
        learner = seats[int(rng.integers(len(seats)))]
        return {
            agent: self.one(league, share, self.spec.policy_at(agent), rng)
            for agent in seats
            if agent != learner
        }

    def one(self, league: League, share: Share, of: str, rng: np.random.Generator) -> SeatPlayer:
        """Return one opponent; `of` is the agent whose current and past versions may play."""
        if share == "anchor":
            anchors = league.anchors or [Base()]
            return anchors[int(rng.integers(len(anchors)))]
        if share == "current":
            return Current(agent=of, trained=False)
        versions = self.view.versions(of, league)
        if league.past == "uniform":
            return Past(agent=of, version=versions[int(rng.integers(len(versions)))])
        weights = np.asarray([_difficulty(self.view.beaten_share(of, version)) for version in versions])
        return Past(agent=of, version=int(rng.choice(versions, p=weights / weights.sum())))


def _difficulty(beaten_share: float) -> float:
    """Return an opponent's weight: one that always loses teaches little, but keeps a small weight.

    Source:
        AlphaStar (doi:10.1038/s41586-019-1724-z), prioritized fictitious self-play with f(p) = (1 - p)^2.
    """
    return (1.0 - beaten_share) ** 2 + 0.01


def share_of(spec: PlayedSpec, league: League, step: int, group: int, *, number: int = 0) -> Share:
    """Return the league's share that a group belongs to.

    Groups are not drawn independently, so in every step the number of groups matches each share to within
    one.

    Args:
        spec: The job's settings.
        league: The league of the seat, or of self-play.
        step: Train step.
        group: The group's number in the step.
        number: The seat's number, so that two leagues draw independently.
    """
    count = spec.groups.count
    if group >= count:
        # It replaces another group and has no place in the permutation, so it is drawn by itself.
        place = float(np.random.default_rng([spec.seed, step, group, number, _STEP]).random())
    else:
        rng = np.random.default_rng([spec.seed, step, number, _STEP])
        place = (int(rng.permutation(count)[group]) + float(rng.random())) / count
    if place < league.anchor_share:
        return "anchor"
    # The last share extends to the end, despite rounding of decimal sums.
    return "current" if place < league.anchor_share + league.current_share or not league.has_past else "past"


def label_of(player: SeatPlayer) -> str:
    """Return the name under which results against a player are recorded."""
    match player:
        case Current(trained=trained):
            return "trained" if trained else CURRENT
        case Past(version=version):
            return f"past@{version}"
        case _:
            return player.label


def class_of(label: str) -> str:
    """Return the kind of opponent, which has its own baseline: all past versions share one."""
    return "past" if label.startswith("past@") else label
