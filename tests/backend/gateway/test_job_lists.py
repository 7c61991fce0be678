import time

import pytest

from tinkergym.schema.events import JobState, StepEvent, WarningEvent

pytestmark = pytest.mark.service


def step(**figures):
    return StepEvent(
        step=1,
        steps=3,
        policy_version=1,
        loss=0.1,
        tokens_per_second=1.0,
        step_seconds=1.0,
        sampling_seconds=0.5,
        learning_seconds=0.5,
        seconds_left=7.0,
        **figures,
    )


LABELS = {"name": "first try", "tags": ["board", "<b>"], "note": "", "archived": True}


def test_lists_jobs_in_brief_with_their_newest_step(gateway, client, spec):
    job_id = client.post("/v1/jobs", json={**spec, "name": "mine"}).json()["job_id"]
    service = gateway.store.service()
    lease = service.acquire(job_id, "worker", 30, now=time.time())
    service.set_state(lease, JobState.RUNNING)
    service.append_events(
        lease,
        [
            step(reward_mean=0.5),
            WarningEvent(name="equal_rewards", message="all equal", step=1),
        ],
    )
    (one,) = client.get("/v1/jobs").json()["jobs"]
    assert (one["name"], one["environment"], one["state"]) == ("mine", "board/TicTacToeVs-v0", "running")
    assert (one["steps"], one["reward_mean"], one["seconds_left"]) == (3, 0.5, 7.0)
    assert one["warnings"] == ["equal_rewards"]
    with gateway.client("bob") as bob:
        assert bob.get("/v1/jobs").json() == {"jobs": [], "has_older": False}


def test_notes_names_and_tags_of_a_job(client, spec):
    job_id = client.post("/v1/jobs", json={**spec, "name": "mine"}).json()["job_id"]
    assert client.post(f"/v1/jobs/{job_id}/labels", json=LABELS).json() == LABELS
    assert client.get(f"/v1/jobs/{job_id}/labels").json() == LABELS
    assert client.get("/v1/jobs").json()["jobs"] == []
    (one,) = client.get("/v1/jobs", params={"archived": True}).json()["jobs"]
    assert (one["name"], one["labels"]) == ("first try", LABELS)
    refused = client.post(f"/v1/jobs/{job_id}/labels", json={"tags": [""]})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "tags.0")


@pytest.fixture
def several(gateway, client, spec):
    """Return the ids of three jobs, in order: the second has a tag, the last steps and a reward."""
    ids = [
        client.post("/v1/jobs", json={**spec, "name": name}).json()["job_id"] for name in ("One", "two", "3")
    ]
    client.post(f"/v1/jobs/{ids[1]}/labels", json={"tags": ["sweep"]})
    service = gateway.store.service()
    lease = service.acquire(ids[2], "worker", 30, now=time.time())
    service.set_state(lease, JobState.RUNNING)
    service.append_events(lease, [step(reward_mean=0.5)])
    return ids


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"search": "tictac ONE"}, [0]),
        ({"search": "sweep"}, [1]),
        ({"name": "one"}, [0]),
        ({"state": ["running", "failed"]}, [2]),
        ({"tag": "sweep"}, [1]),
        ({"tag": ["sweep", "other"]}, []),
        ({"environment": "TICTAC", "model": "NANO", "limit": 2}, [2, 1]),
        ({"model": "%"}, []),
        ({"sort": "name"}, [2, 0, 1]),
        ({"sort": "reward", "limit": 1}, [2]),
    ],
)
def test_finds_jobs_by_what_is_asked(client, several, filters, found):
    listed = client.get("/v1/jobs", params=filters).json()
    assert [one["job_id"] for one in listed["jobs"]] == [several[at] for at in found]
    assert listed["has_older"] == ("limit" in filters)


@pytest.mark.parametrize(
    ("filters", "field"),
    [({"state": "lost"}, "state"), ({"sort": "name", "before": "job-1"}, "before"), ({"stat": "x"}, "stat")],
)
def test_refuses_filters_that_are_none(client, filters, field):
    refused = client.get("/v1/jobs", params=filters)
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, field)
