"""What a person does with episodes and checkpoints in a real browser; see `test_browser`."""

import pytest

from tests.backend.dashboard.test_browser import Seen, episode, saved
from tests.backend.gateway.test_routes_data import sft, upload
from tinkergym.schema.evaluation import EvaluationLine, EvaluationRequest

pytestmark = [pytest.mark.service, pytest.mark.full("many pages in a browser")]


def lines(*records):
    """The body of a streamed answer."""
    return "".join(EvaluationLine(**one).model_dump_json() + "\n" for one in records)


@pytest.fixture
def seen(chromium, gateway):
    found = Seen(chromium, gateway, gateway.keys["ada"])
    yield found
    assert found.wrong == []
    found.page.close()


def test_evaluates_a_checkpoint_on_the_held_out_split(seen, gateway, client, spec):
    held_out = {"steps": 1, "environment": "math/Arithmetic-v0", "env_kwargs": {"split": "test"}}
    learned = sft(upload(client, 4, 5), evaluate=[held_out])
    played = {**spec, "evaluate": [{"steps": 1, "env_kwargs": {"opponent": "perfect"}}]}
    (record,) = episode("job", 0, "plain").trajectories
    answer = lines({"episode_id": "0", "trajectory": record})
    asked = []
    for body in (learned, played):
        job_id = client.post("/v1/jobs", json=body).json()["job_id"]
        saved(gateway, job_id, "")
        seen.page.route("**/v1/evaluations", lambda route: route.fulfill(body=answer))
        seen.open(f"/jobs/{job_id}", "button:has-text('Evaluate')")
        with seen.page.expect_request("**/v1/evaluations") as sent:
            seen.page.click("button:has-text('Evaluate')")
        wanted = EvaluationRequest.model_validate(sent.value.post_data_json)
        assert (wanted.policy, wanted.policy_version) == (job_id, 2)
        asked.append(wanted.environment.model_dump())
        seen.page.wait_for_selector(f"text=of {wanted.environment.id}")
    kwargs = {**spec["environment"].get("kwargs", {}), "opponent": "perfect"}
    assert asked == [
        {"id": "math/Arithmetic-v0", "kwargs": {"split": "test"}},
        {"id": spec["environment"]["id"], "kwargs": kwargs},
    ]


def test_offers_no_evaluation_where_the_service_cannot_play(seen, gateway, client, spec):
    local = {"steps": 1, "environment": "local/Mine-v0"}
    at_client = {**spec, "environment": {"id": "local/Mine-v0"}, "rollout": "client"}
    for body in (sft(upload(client, 4, 5), evaluate=[local]), at_client):
        job_id = client.post("/v1/jobs", json=body).json()["job_id"]
        saved(gateway, job_id, "")
        seen.open(f"/jobs/{job_id}", "button:has-text('Promote')")
        assert seen.page.locator("button:has-text('Evaluate')").count() == 0
