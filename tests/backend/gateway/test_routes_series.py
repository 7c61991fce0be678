import time

import pytest

from tinkergym.schema.events import ErrorView, EvaluationEvent, JobState, StepEvent, WarningEvent

pytestmark = pytest.mark.service


def step(number, **more):
    rest = {"tokens_per_second": 1.0, "step_seconds": 1.0, "sampling_seconds": 0.5, "learning_seconds": 0.5}
    return StepEvent(step=number, steps=3, policy_version=number, loss=0.1, seconds_left=7.0, **rest, **more)


@pytest.fixture
def run(gateway, client, spec):
    job_id = client.post("/v1/jobs", json=spec).json()["job_id"]
    service = gateway.store.service()
    lease = service.acquire(job_id, "worker", 30, now=time.time())
    overlap = EvaluationEvent(
        name="held out", step=2, policy_version=2, episodes=4, failed_episodes=0, mean=0.5, overlap=0.25
    )
    bodies = [
        step(1, reward_mean=0.5, metrics={"kl": 1.0}),
        WarningEvent(name="equal_rewards", message="all equal", step=1),
        overlap,
        step(2, reward_mean=0.75, failed_episodes=3),
    ]
    service.append_events(lease, bodies)
    error = ErrorView(type="PolicyCollapseError", message="it collapsed", hint="lower the rate")
    service.set_state(lease, JobState.FAILED, error=error)
    return job_id


def test_returns_the_metrics_that_are_named(client, run):
    found = client.get(f"/v1/jobs/{run}/series", params={"name": ["reward_mean", "never"]}).json()
    assert found["series"] == [{"name": "reward_mean", "steps": [1, 2], "values": [0.5, 0.75]}]
    assert (found["newest_step"], "kl" in found["names"]) == (2, True)


@pytest.mark.parametrize("names", [["a*a*a*a*a*"], ["*"] * 51, ["a" * 501], ["a"] * 1001])
def test_refuses_names_that_take_long_to_find(client, run, names):
    assert client.get(f"/v1/jobs/{run}/series", params={"name": names}).status_code == 422


def test_lists_the_gravest_alarms_first(client, run):
    found = client.get(f"/v1/jobs/{run}/alarms").json()["alarms"]
    assert [(one["name"], one["last_step"]) for one in found[2:]] == [
        ("evaluation_overlap", 2),
        ("equal_rewards", 1),
    ]
    assert {one["name"] for one in found[:2]} == {"failed", "failed_episodes"}
    failed = next(one for one in found if one["name"] == "failed")
    assert failed["message"] == "it collapsed lower the rate"


def test_returns_settings_other_than_defaults(client, run):
    changed = client.get(f"/v1/jobs/{run}/settings").json()["changed"]
    assert changed["steps"] == 3
    assert changed["environment"] == {"id": "board/TicTacToeVs-v0"}
    assert "seed" not in changed


def test_streams_events_from_the_number_that_is_named(client, run):
    with client.stream("GET", f"/v1/jobs/{run}/events", params={"after": 6}) as answer:
        ids = [line for line in answer.iter_lines() if line.startswith("id:")]
    assert ids == ["id: 7"]
