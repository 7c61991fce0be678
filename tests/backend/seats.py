"""Episodes with two seats, for tests of what is done with them."""

from __future__ import annotations

from collections.abc import Sequence

from tinkergym.schema.episodes import EpisodeRequest, EpisodeResult
from tinkergym.trajectory.trajectory import ONLY_AGENT, Trajectory


def two_seats(
    request: EpisodeRequest, policies: Sequence[str] = ("job-1", "job-1"), *, trained: str = "xo"
) -> EpisodeRequest:
    """Return a request whose seats `x` and `o` are played by these policies."""
    seat = request.seats[ONLY_AGENT]
    return request.model_copy(
        update={
            "seats": {
                agent: seat.model_copy(update={"policy": policy, "trained": agent in trained})
                for agent, policy in zip("xo", policies, strict=True)
            }
        }
    )


def result_of(request: EpisodeRequest, *trajectories: Trajectory) -> EpisodeResult:
    return EpisodeResult(
        episode_id=request.episode_id, lease_id=request.lease_id or "l", trajectories=list(trajectories)
    )
