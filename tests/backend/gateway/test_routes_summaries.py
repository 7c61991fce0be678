import time

import pytest

from tinkergym.schema.events import JobState, StepEvent, WarningEvent

pytestmark = pytest.mark.service

LABELS = {"name": "first try", "tags": ["board", "<b>"], "note": "", "archived": True}


def test_lists_jobs_in_brief_with_their_newest_step(gateway, client, spec):
    job_id = client.post("/v1/jobs", json={**spec, "name": "mine"}).json()["job_id"]
    service = gateway.store.service()
    lease = service.acquire(job_id, "worker", 30, now=time.time())
    service.set_state(lease, JobState.RUNNING)
    service.append_events(
        lease,
        [
            StepEvent(
                step=1,
                steps=3,
                policy_version=1,
                reward_mean=0.5,
                loss=0.1,
                tokens_per_second=1.0,
                step_seconds=1.0,
                sampling_seconds=0.5,
                learning_seconds=0.5,
                seconds_left=7.0,
            ),
            WarningEvent(name="equal_rewards", message="all equal", step=1),
        ],
    )
    (one,) = client.get("/v1/jobs/summaries").json()["jobs"]
    assert (one["name"], one["environment"], one["state"]) == ("mine", "board/TicTacToeVs-v0", "running")
    assert (one["steps"], one["reward_mean"], one["seconds_left"]) == (3, 0.5, 7.0)
    assert one["warnings"] == ["equal_rewards"]
    with gateway.client("bob") as bob:
        assert bob.get("/v1/jobs/summaries").json() == {"jobs": []}


def test_pages_through_jobs_in_brief(client, spec):
    ids = [client.post("/v1/jobs", json=spec).json()["job_id"] for _ in range(3)]
    newest = client.get("/v1/jobs/summaries", params={"limit": 2}).json()["jobs"]
    older = client.get("/v1/jobs/summaries", params={"before": newest[-1]["job_id"]}).json()["jobs"]
    assert [one["job_id"] for one in newest + older] == ids[::-1]


def test_notes_names_and_tags_of_a_job(client, spec):
    job_id = client.post("/v1/jobs", json={**spec, "name": "mine"}).json()["job_id"]
    assert client.post(f"/v1/jobs/{job_id}/labels", json=LABELS).json() == LABELS
    assert client.get(f"/v1/jobs/{job_id}/labels").json() == LABELS
    (one,) = client.get("/v1/jobs/summaries").json()["jobs"]
    assert (one["name"], one["labels"]) == ("first try", LABELS)
    refused = client.post(f"/v1/jobs/{job_id}/labels", json={"tags": [""]})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "tags.0")
