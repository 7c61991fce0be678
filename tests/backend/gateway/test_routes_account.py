import time

import pytest

from backend.config import Prices
from tinkergym.schema.events import JobState, StepEvent

pytestmark = pytest.mark.service


def test_shows_a_tenant_its_own_keys_and_use(gateway, client, spec):
    client.post("/v1/jobs", json=spec)
    (used,) = client.get("/v1/usage").json()["jobs"]
    assert (used["tenant_id"], used["model"], used["jobs"], used["unfinished"]) == (
        gateway.tenants["ada"],
        "nano",
        1,
        1,
    )
    (key,) = client.get("/v1/keys").json()["keys"]
    assert (key["name"], key["read_only"], key["revoked_at"]) == ("test", False, None)
    assert gateway.keys["ada"] not in client.get("/v1/keys").text
    with gateway.client("bob") as bob:
        assert bob.get("/v1/usage").json()["jobs"] == []
        assert gateway.tenants["ada"] not in bob.get("/v1/keys").text


def test_shows_the_local_owner_every_tenant(gateway, client, owner, spec):
    client.post("/v1/jobs", json=spec)
    tenants = {one["tenant_id"] for one in owner.get("/v1/usage").json()["jobs"]}
    assert gateway.tenants["ada"] in tenants
    assert gateway.tenants["ada"] in {one["tenant_id"] for one in owner.get("/v1/keys").json()["keys"]}


def test_shows_what_a_job_has_cost(gateway, client, spec):
    job_id, service = client.post("/v1/jobs", json=spec).json()["job_id"], gateway.store.service()
    lease = service.acquire(job_id, "worker", 30, now=time.time())
    service.set_state(lease, JobState.RUNNING)
    seconds = {"step_seconds": 1.0, "sampling_seconds": 0.5, "learning_seconds": 0.5, "seconds_left": 0.0}
    tokens = {"tokens_per_second": 1.0, "sampled_tokens": 300_000, "trained_tokens": 200_000}
    done = StepEvent(step=1, steps=3, policy_version=1, reward_mean=0.0, loss=0.1, **tokens, **seconds)
    service.record_step(lease, done, weights_sha256="00")
    job, (used,) = client.get(f"/v1/jobs/{job_id}").json(), client.get("/v1/usage").json()["jobs"]
    amount = 0.001 * job["used_seconds"] + 1.0
    assert job["cost"] == {"amount": pytest.approx(amount), "currency": "EUR"}
    assert used["cost"]["amount"] == pytest.approx(amount)
    # Tomorrow's prices may be others.
    assert client.get(f"/v1/jobs/{job_id}/facts").json()["facts"]["job"]["cost"] is None


def test_shows_no_cost_without_prices():
    assert Prices(currency="EUR").cost(3600.0, 10**6) is None
    assert Prices(job_hour=2.0).cost(1800.0, 10**6).amount == 1.0
