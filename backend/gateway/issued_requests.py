"""As what a stored episode was issued: its environment, its seeds, and who played each seat.

Derived again from the job's settings; what a league knew at the time is taken from the episode's own record.
"""

from __future__ import annotations

from collections.abc import Sequence

from backend.episodes.episode_requests import group_requests
from backend.episodes.recorded_actions import RecordedActions
from backend.store.blobs import Blobs
from tinkergym.errors import NotReplayableError
from tinkergym.schema.episodes import EpisodeRequest, EpisodeResult, SeatPlan
from tinkergym.schema.fixed_players import League
from tinkergym.schema.ids import EpisodeId, PolicyRef
from tinkergym.schema.jobs.played_spec import PlayedSpec

_PAST = "past@"


class AnyVersion:
    """A league whose past version is not known yet; implements `LeagueView`."""

    def versions(self, agent: str, league: League) -> Sequence[int]:
        """Return one that stands for it."""
        del agent, league
        return [0]

    def beaten_share(self, agent: str, version: int) -> float:
        """Return any share: there is one version to draw."""
        del agent, version
        return 0.5


def issued(spec: PlayedSpec, episode: EpisodeResult, job_files: Blobs) -> EpisodeRequest:
    """Return the request of a stored episode.

    Raises:
        NotReplayableError: An external model played a seat.
        NotFoundError: It replayed another job's actions, which are no longer stored.
    """
    own = EpisodeId.parse(episode.episode_id)
    group = own.index // spec.groups.size
    recorded = RecordedActions(job_files)
    requests = group_requests(own.job.job_id, spec, own.step, [group], AnyVersion(), recorded=recorded)
    request = next(one for one in requests if one.index == own.index)
    external = next(
        (agent for agent, seat in request.seats.items() if seat.table and seat.table.kind == "external"), ""
    )
    if external:
        raise NotReplayableError(f"an external model played {external}, and it may answer differently")
    versions = {one.agent: one.turns[0].policy_version for one in episode.trajectories if one.turns}
    seats = {agent: _as_played(seat, versions.get(agent)) for agent, seat in request.seats.items()}
    return request.model_copy(update={"seats": seats})


def _as_played(seat: SeatPlan, version: int | None) -> SeatPlan:
    """Return a seat with the past version of the league that played it."""
    if version is None or not seat.player.startswith(_PAST):
        return seat
    policy = str(PolicyRef.parse(seat.policy).at(version))
    changed = {"policy": policy, "policy_version": version, "player": f"{_PAST}{version}"}
    return seat.model_copy(update=changed)
