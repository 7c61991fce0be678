"""Episodes of a train step with their results, and their trained seats."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tinkergym.schema.episodes import EpisodeRequest, EpisodeResult
from tinkergym.schema.events import MOST_NAMED_EPISODES
from tinkergym.trajectory.trajectory import Trajectory

Played = Sequence[tuple[EpisodeRequest, EpisodeResult]]
"""In index order."""


class PlayedSeat(NamedTuple):
    """One seat of an episode with its trajectory."""

    request: EpisodeRequest
    trajectory: Trajectory

    @property
    def group(self) -> int:
        """Number of the seats it is compared with: the same seat in the other episodes of its group.

        With one seat per episode it is the request's.
        """
        agents = list(self.request.seats)
        return self.request.group * len(agents) + agents.index(self.trajectory.agent)


def trained_seats(
    played: Iterable[tuple[EpisodeRequest, EpisodeResult]], policy: str | None = None
) -> list[PlayedSeat]:
    """Return the trained seats, by episode and in the order of the requests' seats.

    Args:
        played: Episodes.
        policy: Only the seats that this policy plays; None means those of all trained policies.
    """
    return [
        PlayedSeat(request, trajectory)
        for request, result in played
        for trajectory in _in_order(request, result)
        if request.seats[trajectory.agent].trained
        and policy in {None, request.seats[trajectory.agent].policy}
    ]


def first_episodes(seats: Iterable[PlayedSeat]) -> list[str]:
    """Return the ids of the first episodes, each once, as many as a warning names."""
    return list(dict.fromkeys(seat.request.episode_id for seat in seats))[:MOST_NAMED_EPISODES]


def is_lost(result: EpisodeResult) -> bool:
    """Whether an episode has no valid end at some seat."""
    return not all(one.completed for one in result.trajectories)


def _in_order(request: EpisodeRequest, result: EpisodeResult) -> list[Trajectory]:
    if len(result.trajectories) == 1:
        return result.trajectories
    by_agent = {one.agent: one for one in result.trajectories}
    return [by_agent[agent] for agent in request.sampled_seats]
