"""Whether a result fits the request that it answers: its seats, and the versions that sampled them. Pure."""

from __future__ import annotations

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.episodes import EpisodeRequest, EpisodeResult
from tinkergym.trajectory.trajectory import Trajectory


def require_requested(result: EpisodeResult, request: EpisodeRequest, *, newest_version: int) -> None:
    """Refuse a result with the wrong seats or policy versions.

    In training, another version's tokens would count as this one's.

    Args:
        result: As its worker submitted it.
        request: What the worker was given.
        newest_version: Of the trained policies; nothing can be sampled by a later one.

    Raises:
        InvalidRequestError: The result has a missing or extra seat, or a turn was sampled by a version that
            the request does not allow.
    """
    seats = request.sampled_seats
    agents = [one.agent for one in result.trajectories]
    if sorted(agents) != sorted(seats):
        raise InvalidRequestError(
            f"episode {result.episode_id} has the seats {', '.join(seats)}, "
            f"but its result has trajectories of {', '.join(agents)}",
            hint="submit one trajectory per seat of the request",
            field="results.trajectories",
        )
    for trajectory in result.trajectories:
        _check_versions(request, trajectory, newest_version)


def _check_versions(request: EpisodeRequest, trajectory: Trajectory, newest_version: int) -> None:
    seat = request.seats[trajectory.agent]
    oldest = newest = seat.policy_version
    wanted, hint = f"version {oldest}", "set the seat's policy_version in every sampling request"
    if request.max_staleness and seat.is_newest:
        newest = newest_version
        wanted, hint = f"versions {oldest} to {newest}", "name no version in requests for tokens"
    versions = (turn.policy_version for turn in trajectory.turns)
    other = next((version for version in versions if not oldest <= version <= newest), None)
    if other is not None:
        raise InvalidRequestError(
            f"agent {trajectory.agent!r} of episode {request.episode_id} was sampled by version {other} "
            f"of the policy, but its request allows {wanted}",
            hint=hint,
            field="results.trajectories",
        )


def marked_as_requested(result: EpisodeResult, request: EpisodeRequest) -> EpisodeResult:
    """Return a result whose trajectories say whether their seat is trained, whatever its worker wrote.

    A league decides group by group who plays a seat, so the job's settings alone do not say it later.
    """
    seats = request.seats
    if all(one.trained == seats[one.agent].trained for one in result.trajectories):
        return result
    marked = [one.model_copy(update={"trained": seats[one.agent].trained}) for one in result.trajectories]
    return result.model_copy(update={"trajectories": marked})


def newest_sampled(result: EpisodeResult, request: EpisodeRequest) -> int:
    """Return the newest version of a trained policy that sampled a part of an episode."""
    seats = request.seats
    return max(
        (
            max((turn.policy_version for turn in one.turns), default=seats[one.agent].policy_version)
            for one in result.trajectories
            if seats[one.agent].is_newest
        ),
        default=0,
    )
