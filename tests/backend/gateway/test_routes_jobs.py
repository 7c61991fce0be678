import hashlib
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

import pytest

from tinkergym.errors import InvalidEnvironmentError
from tinkergym.schema.events import CheckpointView, JobState

pytestmark = pytest.mark.service


def error_of(response):
    return response.json()["error"]


def test_creates_job_with_every_default_filled_in(client, spec):
    response = client.post("/v1/jobs", json=spec)
    assert response.status_code == 201
    job = response.json()
    assert (job["state"], job["spec"]["algorithm"]["group_size"], job["packs"]) == (
        "queued",
        8,
        {"board": "0.1.0"},
    )
    assert client.get(f"/v1/jobs/{job['job_id']}").json() == job
    (listed,) = client.get("/v1/jobs").json()["jobs"]
    assert (listed["job_id"], listed["state"]) == (job["job_id"], "queued")


def test_writes_the_environments_own_prompt_into_job_from_any_player(client, spec):
    def stored(**settings):
        return client.post("/v1/jobs", json={**spec, **settings}).json()["spec"]["environment_prompt"]

    assert stored(rollout="server", environment_prompt="made up") == "Play to win."
    assert stored(rollout="client", environment_prompt="Count.") == "Count."
    assert stored(rollout="client") is None


@pytest.mark.parametrize(
    ("episodes", "settings", "status"),
    [
        (5, {"deterministic": True}, 422),
        (4, {"deterministic": True}, 201),
        (5, {}, 201),
        (5, {"deterministic": True, "rollout": "server"}, 201),
        (5, {"deterministic": True, "rollout": "script"}, 201),
    ],
)
def test_rejects_lockstep_job_whose_requests_would_wait_for_each_other(
    client, spec, episodes, settings, status
):
    algorithm = {"group_size": episodes, "groups_per_step": 1}
    response = client.post("/v1/jobs", json={**spec, "algorithm": algorithm, **settings})
    assert response.status_code == status, response.text
    if status == 422:
        assert error_of(response)["field"] == "deterministic"


def test_makes_one_job_of_a_request_sent_twice(client, spec):
    headers = {"Idempotency-Key": "once"}
    first, second = (client.post("/v1/jobs", json=spec, headers=headers).json() for _ in range(2))
    assert first == second
    clash = client.post("/v1/jobs", json={**spec, "steps": 9}, headers=headers)
    assert (clash.status_code, error_of(clash)["type"]) == (409, "ConflictError")


def test_skips_check_of_a_request_that_is_repeated(gateway, client, spec):
    headers = {"Idempotency-Key": "once"}
    first = client.post("/v1/jobs", json=spec, headers=headers).json()
    gateway.check.refusal = InvalidEnvironmentError("the environment server is away")
    assert client.post("/v1/jobs", json=spec, headers=headers).json() == first
    assert client.post("/v1/jobs", json=spec).status_code == 422


def test_rejects_job_that_the_services_engine_cannot_do_before_creation(gateway, client, spec, monkeypatch):
    asked = {**spec, "sampling": {"temperature": 0.005}}
    assert client.post("/v1/jobs", json=asked).status_code == 201
    monkeypatch.setitem(gateway.config.__dict__, "engine", "vllm")
    response = client.post("/v1/jobs", json=asked)
    assert (response.status_code, error_of(response)["field"]) == (422, "sampling.temperature")


PACKS = [{"name": "rätsel", "distribution": "raetsel", "version": "1.2"}]


def test_keeps_with_job_what_a_playing_client_has_installed(client, spec):
    headers = {"Tinkergym-Packs": json.dumps(PACKS)}
    played_there = {**spec, "rollout": "client"}
    job = client.post("/v1/jobs", json=played_there, headers=headers).json()
    assert job["client_packs"] == PACKS
    assert client.get(f"/v1/jobs/{job['job_id']}").json() == job
    assert client.post("/v1/jobs", json=played_there).json()["client_packs"] == []
    played_by_the_service = {**spec, "rollout": "server"}
    job = client.post("/v1/jobs", json=played_by_the_service, headers=headers).json()
    assert (job["packs"], job["client_packs"]) == ({"board": "0.1.0"}, [])


@pytest.mark.parametrize("header", ["{", "{}", '[{"name": "a"}]', "[" + "[]," * 3000 + "[]]"])
def test_rejects_header_that_is_not_a_list_of_packs(client, spec, header):
    response = client.post("/v1/jobs", json=spec, headers={"Tinkergym-Packs": header})
    assert (response.status_code, error_of(response)["field"]) == (422, "Tinkergym-Packs")


@pytest.mark.parametrize(
    ("change", "field", "text"),
    [
        (
            {"algorithm": {"learning_rat": 1}},
            "algorithm.learning_rat",
            "did you mean algorithm.learning_rate",
        ),
        ({"algorithm": {"group_size": 1}}, "algorithm.group_size", "at least 2"),
        ({"steps": 0}, "steps", "greater than"),
        ({"steps": None}, "steps", "integer"),
        ({"environment": {"id": "a", "code": "x"}}, "environment.code", "unknown setting"),
    ],
)
def test_rejects_wrong_setting_before_anything_starts(client, spec, change, field, text):
    response = client.post("/v1/jobs", json={**spec, **change})
    error = error_of(response)
    assert (response.status_code, error["type"], error["field"]) == (422, "InvalidRequestError", field)
    assert text in error["message"] + error["hint"]
    assert client.get("/v1/jobs").json()["jobs"] == []


def test_rejects_job_that_nobody_would_play(gateway, client, spec, monkeypatch):
    monkeypatch.setitem(gateway.config.__dict__, "env_workers", 0)
    error = error_of(client.post("/v1/jobs", json={**spec, "rollout": "server"}))
    assert (error["field"], "rollout='client'" in error["hint"]) == ("rollout", True)
    assert client.post("/v1/jobs", json=spec).status_code == 201


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"job"',
        b"\xff\xfe",
        b'{"steps": NaN, "environment": {"id": "a"}}',
        b'{"steps": 1, "environment": {"id": "a"}, "sampling": {"temperature": NaN}}',
        b'{"steps": 1, "environment": {"id": "a", "kwargs": {"x": Infinity}}}',
        b'{"steps": 1e400, "environment": {"id": "a"}}',
        b'{"steps": 1, "environment": {"id": "\\ud800"}}',
        b'{"a":' * 2_000,
        b"[" * 20_000,
    ],
)
@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/sample"])
def test_rejects_nonsense_body_and_never_fails_internally(client, path, body):
    response = client.post(path, content=body)
    # 413 where a body has too many values for its kind: those are counted before it is parsed.
    assert response.status_code == (413 if path == "/v1/sample" and len(body) == 20_000 else 422)
    assert all(error_of(response)[part] for part in ("message", "field", "code", "hint"))


def test_delays_only_the_tenant_whose_job_checks_hang(gateway, client, spec):
    check, hanging = gateway.check, 12
    check.hangs_for = gateway.tenants["bob"]
    with gateway.client("bob") as bob, ThreadPoolExecutor(hanging) as threads:
        submitted = [threads.submit(bob.post, "/v1/jobs", json=spec) for _ in range(hanging)]
        try:
            for _ in range(4):  # half of the places
                assert check.hanging.acquire(timeout=120)
            assert client.post("/v1/jobs", json=spec).status_code == 201
            assert client.get("/v1/renderer", params={"model": "nano"}).status_code == 200
            # Those beyond its half have not begun.
            assert not check.hanging.acquire(blocking=False)
        finally:
            check.goes_on.set()
        assert {one.result().status_code for one in submitted} == {201}


def test_passes_findings_of_the_job_check_to_user(gateway, client, spec):
    gateway.check.refusal = InvalidEnvironmentError("reset failed", hint="repair it", field="environment")
    response = client.post("/v1/jobs", json=spec)
    assert response.status_code == 422
    assert error_of(response) == gateway.check.refusal.to_wire()
    assert client.get("/v1/jobs").json()["jobs"] == []


@pytest.mark.parametrize(
    ("change", "status", "text"),
    [
        ({"algorithm": {"group_size": 10**12}}, 422, "limits.episodes_per_step"),
        (
            {"algorithm": {"groups_per_step": 128, "dynamic_sampling_rounds": 32}},
            422,
            "limits.episodes_per_step",
        ),
        ({"environment": {"id": "a", "kwargs": {"data": "x" * 150_000}}}, 413, "dataset"),
    ],
)
def test_rejects_job_that_would_crowd_out_others(client, spec, change, status, text):
    response = client.post("/v1/jobs", json={**spec, **change})
    assert response.status_code == status
    assert text in error_of(response)["hint"]


def test_hides_the_inside_from_client_on_unexpected_failure(gateway, client, spec):
    gateway.check.refusal = RuntimeError("secret of another tenant")
    response = client.post("/v1/jobs", json=spec)
    assert (response.status_code, error_of(response)["type"]) == (500, "InternalServiceError")
    assert "secret" not in response.text


def test_lists_jobs_page_by_page(client, spec):
    ids = [client.post("/v1/jobs", json=spec).json()["job_id"] for _ in range(3)]
    first = client.get("/v1/jobs", params={"limit": 2}).json()["jobs"]
    second = client.get("/v1/jobs", params={"limit": 2, "before": first[-1]["job_id"]}).json()["jobs"]
    assert [job["job_id"] for job in first + second] == ids[::-1]
    refused = client.get("/v1/jobs", params={"limit": "many"})
    assert (refused.status_code, error_of(refused)["field"]) == (422, "limit")


def test_keeps_cancelled_job_cancelled_however_often_one_asks(client, spec):
    job_id = client.post("/v1/jobs", json=spec).json()["job_id"]
    answers = [client.post(f"/v1/jobs/{job_id}/cancel").json() for _ in range(2)]
    assert answers[0] == answers[1]
    assert answers[0]["state"] == "cancelled"


def test_lists_and_downloads_a_checkpoint_file_by_file(gateway, owner, spec):
    client = owner
    job_id = client.post("/v1/jobs", json=spec).json()["job_id"]
    service = gateway.store.service()
    lease = service.acquire(job_id, "pool-1", 30, now=0)
    folder = gateway.config.jobs_dir / job_id / "checkpoints" / "step-000001.e1"
    folder.mkdir(parents=True)
    weights = bytes(range(256)) * 400
    (folder / "adapter_model.safetensors").write_bytes(weights)
    (folder / "optimizer.safetensors").write_bytes(b"not listed")
    (folder.parent / "secret").write_text("secret")
    view = CheckpointView(
        step=1,
        policy_version=1,
        key=f"{job_id}/checkpoints/step-000001.e1",
        sha256=hashlib.sha256(weights).hexdigest(),
        files={"adapter_model.safetensors": len(weights)},
    )
    service.add_checkpoint(lease, view)
    assert client.get(f"/v1/jobs/{job_id}/checkpoints").json() == {
        "checkpoints": [{**view.model_dump(), "path": str(folder)}]
    }
    files = f"/v1/jobs/{job_id}/checkpoints/1/files"
    assert client.get(f"{files}/adapter_model.safetensors").content == weights
    part = client.get(f"{files}/adapter_model.safetensors", headers={"Range": "bytes=100-199"})
    assert (part.status_code, part.content) == (206, weights[100:200])
    for name in ("optimizer.safetensors", "..%2Fsecret", "%2Fetc%2Fpasswd", "nothing"):
        assert client.get(f"{files}/{name}").status_code == 404
    assert client.get(files.replace("/1/", "/2/") + "/adapter_model.safetensors").status_code == 404
    assert client.get(files.replace("/1/", "/x/") + "/adapter_model.safetensors").status_code == 422
    shutil.rmtree(gateway.config.jobs_dir / job_id)  # Later tests look at the folder of all jobs.


def ended_job(gateway, client, spec, **changes):
    """Return a cancelled job with a folder of its own."""
    job_id = client.post("/v1/jobs", json={**spec, **changes}).json()["job_id"]
    client.post(f"/v1/jobs/{job_id}/cancel")
    folder = gateway.config.jobs_dir / job_id / "checkpoints" / "step-000001"
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(bytes(1000))
    return job_id


def test_deletes_job_fully_and_lets_its_key_be_used_again(gateway, client, spec):
    headers = {"Idempotency-Key": "again"}
    job_id = client.post("/v1/jobs", json=spec, headers=headers).json()["job_id"]
    client.post(f"/v1/jobs/{job_id}/cancel")
    (gateway.config.jobs_dir / job_id).mkdir(parents=True)
    (gateway.config.jobs_dir / job_id / "weights").write_bytes(bytes(700))
    other = ended_job(gateway, client, spec)
    deleted = client.delete(f"/v1/jobs/{job_id}")
    assert (deleted.status_code, deleted.json()) == (200, {"job_id": job_id, "bytes": 700})
    assert [job["job_id"] for job in client.get("/v1/jobs").json()["jobs"]] == [other]
    for path in ("", "/events", "/checkpoints"):
        assert client.get(f"/v1/jobs/{job_id}{path}").status_code == 404
    assert client.delete(f"/v1/jobs/{job_id}").status_code == 404
    left = {folder.name for folder in gateway.config.jobs_dir.iterdir()}
    assert (job_id in left, other in left) == (False, True)
    assert client.post("/v1/jobs", json=spec, headers=headers).json()["job_id"] != job_id


def test_keeps_job_that_is_running_or_that_another_builds_on(gateway, client, spec):
    queued = client.post("/v1/jobs", json=spec).json()["job_id"]
    refused = client.delete(f"/v1/jobs/{queued}")
    assert (refused.status_code, error_of(refused)["type"]) == (409, "ConflictError")
    service = gateway.store.service()
    lease = service.acquire(queued, "pool-1", 30, now=0)
    view = CheckpointView(step=1, policy_version=1, path="away", sha256="0", files={})
    service.add_checkpoint(lease, view)
    service.set_state(lease, JobState.COMPLETED)
    heir = client.post("/v1/jobs", json={**spec, "initial_policy": queued}).json()["job_id"]
    refused = client.delete(f"/v1/jobs/{queued}")
    assert (refused.status_code, heir in error_of(refused)["message"]) == (409, True)
    assert client.get(f"/v1/jobs/{queued}/checkpoints").json()["checkpoints"]
    client.post(f"/v1/jobs/{heir}/cancel")
    assert client.delete(f"/v1/jobs/{queued}").status_code == 200


@pytest.mark.parametrize("name", ["..", "%2e%2e", ".deleted-x", "job-never"])
def test_deletes_no_folder_by_what_is_no_job(gateway, client, name):
    kept = gateway.config.jobs_dir / ".deleted-x"
    kept.mkdir(parents=True, exist_ok=True)
    assert client.delete(f"/v1/jobs/{name}").status_code in {404, 405}
    assert kept.is_dir()


def test_lists_the_environments_that_the_service_plays_with_their_packs(gateway, client, monkeypatch):
    listed = client.get("/v1/environments").json()["environments"]
    board = next(one for one in listed if one["id"] == "board/TicTacToeVs-v0")
    assert board == {**board, "distribution": "tinkergym-board", "version": version("tinkergym-board")}
    monkeypatch.setitem(gateway.config.__dict__, "env_workers", 0)
    assert client.get("/v1/environments").json() == {"environments": []}


@pytest.mark.parametrize(("client_version", "status"), [(version("tinkergym"), 200), ("9.9.0", 426)])
def test_rejects_client_of_another_version(client, client_version, status):
    response = client.get("/v1/jobs", headers={"Tinkergym-Version": client_version})
    assert response.status_code == status
    if status == 426:
        assert error_of(response)["type"] == "VersionMismatchError"
