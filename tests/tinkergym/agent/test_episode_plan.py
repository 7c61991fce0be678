from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.schema.episodes import CURRENT, EpisodeRequest, SeatPlan, TablePlayer
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits, Sampling


def seat(**settings):
    return SeatPlan(
        **{
            "policy": "job-1",
            "policy_version": 3,
            "model": "nano",
            "sampling_seed": 5,
            "sampling": Sampling(temperature=0.7),
            **settings,
        }
    )


def request(seats, **settings):
    return EpisodeRequest(
        **{
            "job_id": "job-1",
            "episode_id": "job-1:1:0",
            "step": 1,
            "index": 0,
            "group": 0,
            "environment": EnvironmentRef(id="x"),
            "seed": 9,
            "seats": seats,
            "limits": Limits(),
            "lease_id": "lease-1",
            "lease_seconds": 30.0,
            **settings,
        }
    )


def test_names_token_requests_by_lease_seat_attempt_and_turn():
    plan = EpisodePlan.from_request(request({"x": seat(), "o": seat()}))
    again = plan.again()
    names = [one.request_id(turn) for whole in (plan, again) for one in whole.seats for turn in (0, 1)]
    assert len(set(names)) == 8
    assert [one.session_id for one in plan.seats] == ["lease-1", "lease-1.1"]


def test_keeps_seeds_for_another_attempt():
    plan = EpisodePlan.from_request(request({"x": seat(), "o": seat(sampling_seed=6)}))
    again = plan.again()
    assert (again.seed, [one.decoding.seed for one in again.seats]) == (9, [5, 6])
    assert [one.attempt for one in again.seats] == [1, 1]


def test_plans_nothing_for_seats_played_at_the_table():
    scripted = seat(table=TablePlayer(name="random"), sampling_seed=8)
    plan = EpisodePlan.from_request(request({"x": scripted, "o": seat()}))
    assert [one.agent for one in plan.seats] == ["o"]
    assert plan.table == {"x": (TablePlayer(name="random"), 8)}
    assert plan.seat == 1


def test_asks_for_newest_version_with_staleness_and_newest_seats():
    seats = {
        "x": seat(),
        "o": seat(trained=False, player=CURRENT),
        "z": seat(trained=False, player="past@3"),
    }
    versions = [one.policy_version for one in EpisodePlan.from_request(request(seats, max_staleness=2)).seats]
    assert versions == [None, None, 3]
    versions = [one.policy_version for one in EpisodePlan.from_request(request(seats)).seats]
    assert versions == [3, 3, 3]


def test_replaces_temperature_of_training_by_a_seats_own():
    plan = EpisodePlan.from_request(request({"x": seat(), "o": seat(temperature=0.0)}))
    assert [one.decoding.temperature for one in plan.seats] == [0.7, 0.0]
