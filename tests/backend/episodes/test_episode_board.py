from __future__ import annotations

import contextlib
import pickle
from itertools import count

import pytest

from backend.episodes.episode_board import EpisodeBoard
from backend.episodes.episode_requests import step_requests
from tinkergym.algorithms import GRPO
from tinkergym.errors import InvalidRequestError
from tinkergym.schema.episodes import EpisodeRequest, EpisodeResult
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.testing.made_up_episodes import one_turn_episode
from tinkergym.trajectory.trajectory import ONLY_AGENT, Segment, StopReason, Trajectory, Turn


def spec(**settings: object) -> RLSpec:
    settings.setdefault("algorithm", GRPO(group_size=2, groups_per_step=2))
    return RLSpec(environment=EnvironmentRef(id="bandit/Bandit-v0"), steps=3, **settings)


def board(**settings: object) -> EpisodeBoard:
    numbers = count(1)
    made = EpisodeBoard(lease_seconds=30.0, new_lease_id=lambda: f"lease-{next(numbers)}", **settings)
    made.post(1, step_requests("job-1", spec(), 1))
    return made


def result(request: EpisodeRequest) -> EpisodeResult:
    trajectory = Trajectory(
        segments=[],
        turns=[],
        terminated=True,
        truncated=False,
        stop_reason=StopReason.TERMINATED,
        seed=request.seed,
    )
    return EpisodeResult(episode_id=request.episode_id, lease_id=request.lease_id, trajectories=[trajectory])


def hand_in(to: EpisodeBoard, request: EpisodeRequest) -> str:
    verdict = to.claim(result(request))
    if verdict == "accepted":
        to.settle(result(request), stored=True)
    return verdict


def test_gives_an_episode_to_one_worker_at_a_time():
    episodes = board()
    first = episodes.lease("a", 3, now=0.0)
    second = episodes.lease("b", 3, now=0.0)
    ids = [request.episode_id for request in first + second]
    assert len(ids) == len(set(ids)) == 4


def test_gives_a_second_worker_an_even_share():
    episodes = board()
    assert episodes.lease("a", 0, now=0.0) == []
    assert len(episodes.lease("b", 10, now=0.0)) == 2
    assert len(episodes.lease("a", 10, now=0.0)) == 2


def test_forgets_workers_that_were_silent_for_a_lease():
    episodes = EpisodeBoard(lease_seconds=30.0)
    episodes.post(1, step_requests("job-1", spec(), 1))
    episodes.lease("a", 0, now=0.0)
    size = len(pickle.dumps(episodes))
    for number in range(1000):
        episodes.lease(f"worker-{number}", 0, now=1.0)
        episodes.renew(f"other-{number}", [], now=2.0)
    episodes.lease("a", 0, now=3.0)
    episodes.lease("b", 0, now=32.0)
    assert len(pickle.dumps(episodes)) < size + 100
    assert len(episodes.lease("b", 10, now=32.5)) == 2  # "a" may still come for its share


def test_reissues_a_silent_workers_episodes_under_the_same_ids():
    episodes = board()
    lost = episodes.lease("a", 4, now=0.0)
    assert episodes.expire(now=29.9) == 0
    assert episodes.expire(now=30.0) == 4
    again = [*episodes.lease("b", 4, now=31.0), *episodes.lease("b", 4, now=31.0)]
    assert [request.episode_id for request in again] == [request.episode_id for request in lost]
    assert {request.lease_id for request in again}.isdisjoint(request.lease_id for request in lost)
    assert hand_in(episodes, lost[0]) == "stale"
    assert hand_in(episodes, again[0]) == "accepted"


def test_hands_an_ending_workers_episodes_to_the_next_one_immediately():
    episodes = board()
    given = episodes.lease("a", 4, now=0.0)
    assert episodes.release("a", kept=[given[0].lease_id]) == 3
    assert hand_in(episodes, given[0]) == "accepted"
    again = episodes.lease("b", 4, now=0.0)
    assert [request.episode_id for request in again] == [request.episode_id for request in given[1:]]
    assert hand_in(episodes, given[1]) == "stale"


def test_returns_untaken_episodes_to_a_worker_whose_connection_broke():
    episodes = board()
    given = [request.lease_id for request in episodes.lease("a", 4, now=0.0)]
    episodes.release("a")
    taken = [request.episode_id for request in episodes.lease("b", 2, now=1.0)]
    assert len(taken) == 2
    assert episodes.renew("a", given, now=2.0) == set(given[2:])


def test_knows_how_long_a_silent_worker_holds_all_remaining_episodes():
    episodes = board()
    episodes.lease("a", 4, now=0.0)
    episodes.lease("b", 4, now=5.0)
    assert episodes.held_seconds(now=5.0) == 0.0  # it may renew at any moment
    assert episodes.held_seconds(now=12.0) == 18.0
    episodes.release("a")
    assert episodes.held_seconds(now=12.0) == 0.0


def test_extends_a_renewed_lease_beyond_its_first_end():
    episodes = board()
    leases = {request.lease_id for request in episodes.lease("a", 4, now=0.0)}
    assert episodes.renew("a", leases, now=29.0) == leases
    assert episodes.expire(now=58.0) == 0


def test_lets_late_worker_keep_what_nobody_else_has_taken():
    episodes = board()
    request = episodes.lease("a", 4, now=0.0)[0]
    episodes.expire(now=40.0)
    assert episodes.renew("a", [request.lease_id], now=41.0) == {request.lease_id}
    assert hand_in(episodes, request) == "accepted"


def test_renews_nobody_elses_lease():
    episodes = board()
    request = episodes.lease("a", 1, now=0.0)[0]
    assert episodes.renew("b", [request.lease_id], now=1.0) == set()


def test_reopens_dead_workers_episodes_immediately_and_rejects_late_results():
    episodes = board()
    request = episodes.lease("a", 4, now=0.0)[0]
    assert episodes.forget_worker("a") == 4
    assert hand_in(episodes, request) == "stale"
    assert episodes.lease("b", 1, now=0.0)[0].episode_id == request.episode_id


def test_counts_a_result_once():
    episodes = board()
    request = episodes.lease("a", 1, now=0.0)[0]
    assert hand_in(episodes, request) == "accepted"
    assert hand_in(episodes, request) == "duplicate"
    assert episodes.unfinished(1) == 3


@pytest.mark.parametrize(("version", "fits"), [(0, True), (1, False)])
def test_rejects_what_another_policy_version_sampled(version, fits):
    episodes = board()
    request = episodes.lease("a", 1, now=0.0)[0]
    with (
        contextlib.nullcontext()
        if fits
        else pytest.raises(InvalidRequestError, check=lambda error: error.field == "results.trajectories")
    ):
        episodes.check(sampled_by(version, request))


def by_version(version: int, agent: str) -> Trajectory:
    record = one_turn_episode(agent=agent)
    turns = [turn.model_copy(update={"policy_version": version}) for turn in record.turns]
    return record.model_copy(update={"turns": turns})


def sampled_by(version: int, request: EpisodeRequest) -> EpisodeResult:
    segment = Segment(token_ids=[1, 2], loss_mask=[False, True], sampling_logprobs=[None, -0.5])
    turn = Turn(
        segment=0,
        start=1,
        end=2,
        policy_version=version,
        finish_reason="stop",
        observation="",
        action="",
        reward=1.0,
    )
    trajectory = result(request).trajectory.model_copy(update={"segments": [segment], "turns": [turn]})
    return result(request).model_copy(update={"trajectories": [trajectory]})


def test_accepts_again_a_result_that_could_not_be_stored():
    episodes = board()
    request = episodes.lease("a", 1, now=0.0)[0]
    assert episodes.claim(result(request)) == "accepted"
    episodes.settle(result(request), stored=False)
    assert hand_in(episodes, request) == "accepted"


def test_returns_results_in_index_order_whatever_their_arrival():
    episodes = board()
    for request in reversed(episodes.lease("a", 4, now=0.0)):
        hand_in(episodes, request)
    assert [request.index for request, _ in episodes.results(1)] == [0, 1, 2, 3]


def test_does_not_reissue_episodes_that_earlier_attempt_stored():
    requests = step_requests("job-1", spec(), 1)
    episodes = board()
    episodes.post(1, requests, [result(requests[1]), result(requests[3])])
    assert [request.index for request in episodes.lease("a", 4, now=0.0)] == [0, 2]


def test_voids_leases_of_the_last_step_in_next():
    episodes = board()
    old = episodes.lease("a", 1, now=0.0)[0]
    episodes.post(2, step_requests("job-1", spec(), 2))
    assert episodes.renew("a", [old.lease_id], now=1.0) == set()
    assert hand_in(episodes, old) == "stale"


def ahead(*steps: int) -> EpisodeBoard:
    episodes = EpisodeBoard(lease_seconds=30.0, ahead=1)
    for step in steps:
        episodes.post(step, step_requests("job-1", spec(max_staleness=1), step))
    return episodes


def test_issues_the_earlier_step_first_in_even_shares():
    episodes = ahead(1, 2)
    assert episodes.lease("a", 0, now=0.0) == []
    given = episodes.lease("b", 3, now=0.0)
    assert [(request.step, request.index) for request in given] == [(1, 0), (1, 1), (2, 0)]
    assert [request.step for request in episodes.lease("a", 2, now=0.0)] == [1, 1]


def test_keeps_the_step_before_one_played_ahead():
    episodes = ahead(1, 2)
    first, second = episodes.lease("a", 4, now=0.0)[0], episodes.lease("a", 4, now=0.0)[-1]
    assert (first.step, second.step) == (1, 2)
    episodes.post(3, step_requests("job-1", spec(max_staleness=1), 3))
    assert hand_in(episodes, first) == "stale"
    assert hand_in(episodes, second) == "accepted"
    assert [len(episodes.results(step)) for step in (1, 2, 3)] == [0, 1, 0]
    assert [episodes.unfinished(step) for step in (1, 2, 3)] == [0, 3, 4]


@pytest.mark.parametrize(("version", "fits"), [(0, False), (1, True), (2, True), (3, False)])
def test_accepts_ahead_any_existing_version_within_the_bound(version, fits):
    episodes = ahead(3)
    episodes.newest_version = 2
    request = episodes.lease("a", 1, now=0.0)[0]
    assert (request.seats[ONLY_AGENT].policy_version, request.max_staleness) == (1, 1)
    refused = pytest.raises(InvalidRequestError, check=lambda error: error.field == "results.trajectories")
    with contextlib.nullcontext() if fits else refused:
        episodes.check(sampled_by(version, request))


def test_gives_whole_lockstep_step_to_one_worker_regardless_of_ask():
    episodes = board(lockstep=True)
    assert len(episodes.lease("a", 1, now=0.0)) == 4
    assert episodes.lease("b", 10, now=0.0) == []


@pytest.mark.parametrize("how", ["expired", "died"])
def test_breaks_lockstep_step_on_a_lost_episode_until_posted_again(how):
    episodes = board(lockstep=True)
    requests = episodes.lease("a", 4, now=0.0)
    hand_in(episodes, requests[0])
    episodes.expire(now=99.0) if how == "expired" else episodes.forget_worker("a")
    assert episodes.broken
    assert episodes.playing == []
    assert episodes.lease("b", 4, now=99.0) == []
    assert episodes.renew("a", [requests[1].lease_id], now=99.0) == set()
    assert hand_in(episodes, requests[1]) == "stale"
    episodes.post(1, step_requests("job-1", spec(), 1))
    assert len(episodes.lease("b", 4, now=99.0)) == 4


def test_gives_jointly_paid_group_to_one_worker_whatever_its_room():
    episodes = board(by_group=True)
    first = episodes.lease("a", 1, now=0.0)
    assert [request.group for request in first] == [0, 0]
    assert [request.group for request in episodes.lease("b", 3, now=0.0)] == [1, 1]
    assert episodes.lease("b", 3, now=0.0) == []


def test_counts_all_results_of_a_jointly_paid_group_or_none():
    episodes = board(by_group=True)
    first, second, *other = episodes.lease("a", 4, now=0.0)
    assert episodes.claim_all([result(first)]) == ["stale"]
    assert episodes.claim_all([result(one) for one in [second, *other]]) == ["stale", "accepted", "accepted"]
    both = [result(first), result(second)]
    assert episodes.claim_all(both) == ["accepted", "accepted"]
    for one in both:
        episodes.settle(one, stored=True)
    assert episodes.claim_all(both[:1]) == ["duplicate"]


def test_replays_a_lost_group_as_a_whole():
    episodes = board(by_group=True)
    first, second, *_ = episodes.lease("a", 4, now=0.0)
    episodes.renew("a", [first.lease_id], now=20.0)
    episodes.expire(now=35.0)
    # Its worker still renews one of the two: nobody else can be given the other alone.
    assert {request.group for request in episodes.lease("b", 4, now=35.0)} == {1}
    episodes.expire(now=60.0)
    again = episodes.lease("b", 4, now=60.0)
    assert [request.group for request in again] == [0, 0]
    assert episodes.claim_all([result(first), result(second)]) == ["stale", "stale"]
