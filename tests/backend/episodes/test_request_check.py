import contextlib

import pytest

from backend.episodes.episode_requests import step_requests
from backend.episodes.request_check import marked_as_requested, newest_sampled, require_requested
from tests.backend.seats import result_of, two_seats
from tinkergym.algorithms import GRPO
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.episodes import EpisodeResult
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.testing.made_up_episodes import one_turn_episode
from tinkergym.trajectory.trajectory import Trajectory

SPEC = RLSpec(
    environment=EnvironmentRef(id="bandit/Bandit-v0"),
    steps=3,
    algorithm=GRPO(group_size=2, groups_per_step=2),
)


def by_version(version: int, agent: str) -> Trajectory:
    record = one_turn_episode(agent=agent)
    turns = [turn.model_copy(update={"policy_version": version}) for turn in record.turns]
    return record.model_copy(update={"turns": turns})


@pytest.mark.parametrize(
    ("agents", "fits"), [("xo", True), ("ox", True), ("x", False), ("xz", False), ("xoz", False)]
)
def test_takes_one_trajectory_per_seat_of_the_request(agents, fits):
    request = two_seats(step_requests("job-1", SPEC, 1)[0])
    handed_in = result_of(request, *(one_turn_episode(agent=agent) for agent in agents))
    with contextlib.nullcontext() if fits else pytest.raises(InvalidRequestError) as caught:
        require_requested(handed_in, request, newest_version=0)
    assert fits or caught.value.field == "results.trajectories"


def test_holds_each_seat_to_the_version_of_its_own_policy():
    request = two_seats(
        step_requests("job-1", SPEC.model_copy(update={"max_staleness": 1, "seed": 1}), 5)[0], trained="x"
    )
    past = request.seats["o"].model_copy(update={"policy": "past", "policy_version": 1})
    request = request.model_copy(update={"seats": {**request.seats, "o": past}})

    def of_versions(x: int, o: int) -> EpisodeResult:
        return result_of(request, by_version(x, "x"), by_version(o, "o"))

    require_requested(of_versions(4, 1), request, newest_version=4)
    assert newest_sampled(of_versions(3, 1), request) == 3
    with pytest.raises(InvalidRequestError) as caught:
        require_requested(of_versions(1, 1), request, newest_version=4)
    assert caught.value.field == "results.trajectories"
    # The bound on staleness is the trained policy's; the other has one version.
    with pytest.raises(InvalidRequestError) as caught:
        require_requested(of_versions(4, 4), request, newest_version=4)
    assert caught.value.field == "results.trajectories"


def test_records_which_seats_are_trained_whatever_the_worker_wrote():
    (request, *_) = step_requests("job-1", SPEC, 1)
    request = two_seats(request, ("job-1", "job-1@2"), trained="x")
    played = result_of(request, one_turn_episode(agent="x"), one_turn_episode(agent="o"))
    marked = marked_as_requested(played, request)
    assert {one.agent: one.trained for one in marked.trajectories} == {"x": True, "o": False}
    assert marked_as_requested(marked, request) is marked
