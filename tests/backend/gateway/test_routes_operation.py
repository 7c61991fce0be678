import time

import pytest

pytestmark = pytest.mark.service


@pytest.fixture
def log(gateway):
    folder = gateway.config.log_dir
    folder.mkdir(exist_ok=True)
    (folder / "scheduler.log").write_text("a pool started\n")


@pytest.mark.parametrize("path", ["/v1/operation", "/v1/logs", "/v1/logs/scheduler"])
def test_shows_operation_to_the_operator_alone(gateway, client, owner, log, path):
    refused = client.get(path)
    assert (refused.status_code, refused.json()["error"]["type"]) == (403, "OperatorOnlyError")
    assert owner.get(path).status_code == 200


def test_keeps_logs_from_a_read_only_key(gateway, owner, log):
    assert owner.get("/v1/logs/scheduler?lines=1").json()["text"] == "a pool started\n"
    key = gateway.store.keys.create(gateway.tenants["owner"], "screen", read_only=True)
    headers = {"Authorization": f"Bearer {key}"}
    assert owner.get("/v1/operation", headers=headers).status_code == 200
    for path in ("/v1/logs", "/v1/logs/scheduler"):
        assert owner.get(path, headers=headers).json()["error"]["type"] == "ReadOnlyKeyError"


def test_lists_workers_with_what_runs_on_them(gateway, client, owner, spec, start_pool):
    start_pool()
    service = gateway.store.service()
    service.register_pool("pool-gone", "nano", "http://127.0.0.1:1", "token", time.time() - 3600.0)
    job_id = client.post("/v1/jobs", json=spec).json()["job_id"]
    service.acquire(job_id, "pool-1", 30, now=time.time())
    workers = {one["worker_id"]: one for one in owner.get("/v1/operation").json()["workers"]}
    there, gone = workers["pool-1"], workers["pool-gone"]
    assert (there["state"], there["node"], there["started_at"]) == ("ready", "here", 1.0)
    assert there["environment_workers"] == [{"worker_id": "env-1", "plays_for": "ada", "silent_seconds": 0.5}]
    running = {one["job_id"]: one["tenant_id"] for one in there["jobs"]}
    assert running[job_id] == gateway.tenants["ada"]
    assert (gone["state"], gone["started_at"]) == ("silent", None)


def test_puts_failed_checks_first(gateway, owner, start_pool):
    start_pool()
    checks = owner.get("/v1/operation").json()["checks"]
    assert (checks[0]["name"], checks[0]["ok"]) == ("scheduler", False)
    assert {one["name"]: one["ok"] for one in checks}["disk"]
    gateway.store.service().touch_part("scheduler", now=time.time())
    assert all(one["ok"] for one in owner.get("/v1/operation").json()["checks"])


def test_asks_pools_for_a_token_before_it_checks(gateway, owner, start_pool):
    start_pool().proof = 500
    gateway.store.service().touch_part("scheduler", now=time.time())
    (failed,) = (one["name"] for one in owner.get("/v1/operation").json()["checks"] if not one["ok"])
    assert failed == "pool:nano"
