import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from backend.store.images import Images
from backend.store.local_blobs import LocalBlobs
from backend.store.uploads import Uploads
from tinkergym.schema.events import CheckpointView
from tinkergym.schema.uploaded_data import DataChunk, DataManifest

pytestmark = pytest.mark.service


def error_of(response):
    return response.json()["error"]


def upload(client, *lengths, kind="sft"):
    """Send records of these lengths and return the set's name."""
    each = 1 if kind == "sft" else 2
    records = [[{"token_ids": list(range(length)), "trained": [[1, length]]}] * each for length in lengths]
    body = DataChunk(kind=kind, records=records).model_dump_json().encode()
    name = hashlib.sha256(body).hexdigest()
    assert client.put(f"/v1/data/chunks/{name}", content=body).status_code == 200
    manifest = DataManifest(kind=kind, chunks=[name])
    view = client.post("/v1/data", json=manifest.model_dump()).json()
    assert (view["data_id"], view["missing"], view["records"]) == (manifest.data_id, [], len(lengths))
    assert client.get(f"/v1/data/{manifest.data_id}").json() == view
    return manifest.data_id


def sft(data, **settings):
    return {"kind": "sft", "data": data, "steps": 3, "batch_size": 2, **settings}


def test_creates_job_on_uploaded_data_with_every_default_filled_in(client):
    response = client.post("/v1/jobs", json=sft(upload(client, 4, 5, 6)))
    assert response.status_code == 201, response.text
    spec = response.json()["spec"]
    assert (spec["kind"], spec["aggregation"], spec["lr_schedule"]) == ("sft", "token", "linear")
    leased = client.post(
        f"/v1/jobs/{response.json()['job_id']}/episodes/lease", json={"worker_id": "w", "max_episodes": 1}
    )
    assert (leased.status_code, "does not play episodes" in error_of(leased)["message"]) == (409, True)


def test_rejects_evaluations_that_nobody_would_play(gateway, client, monkeypatch):
    data = upload(client, 4, 5, 6)
    monkeypatch.setitem(gateway.config.__dict__, "env_workers", 0)
    held_out = {"steps": 1, "environment": "board/TicTacToeVs-v0"}
    error = error_of(client.post("/v1/jobs", json=sft(data, evaluate=[held_out])))
    assert (error["type"], error["field"]) == ("InvalidRequestError", "evaluate")
    assert client.post("/v1/jobs", json=sft(data)).status_code == 201


@pytest.mark.parametrize(
    ("change", "field", "text"),
    [
        ({"data": "f" * 64}, "data", "there is no data set"),
        ({"data": "short"}, "data", "pattern"),
        ({"batch_size": 4}, "batch_size", "set it to 3 or lower"),
        ({"held_out": 0.4}, "batch_size", "set it to 2 or lower"),
        ({"held_out": 0.9}, "held_out", "0.9 of 3 records would leave none"),
        ({"held_out": 0.4, "eval_data": "f" * 64}, "held_out", "set only one of them"),
        ({"kind": "preference"}, "data", "is data for 'sft'"),
        ({"kind": "sfft"}, "kind", "did you mean 'sft'"),
        ({"learning_rat": 1}, "learning_rat", "did you mean learning_rate"),
        ({"initial_policy": "job-none"}, "initial_policy", "there is no job"),
    ],
)
def test_rejects_what_cannot_be_trained_before_anything_starts(client, change, field, text):
    settings = {
        **sft(upload(client, 4, 5, 6)),
        **({"batch_size": 3} if "held_out" in change else {}),
        **change,
    }
    response = client.post("/v1/jobs", json=settings)
    error = error_of(response)
    assert (response.status_code in (404, 422), error["field"]) == (True, field), error
    assert text in error["message"] + error["hint"]


def test_rejects_data_longer_than_the_models_context(client):
    error = error_of(client.post("/v1/jobs", json=sft(upload(client, 4, 1025))))
    assert (error["type"], error["field"]) == ("InvalidRequestError", "data")
    assert "1025 tokens" in error["message"]


def test_denies_a_tenant_the_data_of_another(gateway, client):
    data = upload(client, 4, 5)
    with gateway.client("bob") as bob:
        assert bob.get(f"/v1/data/{data}").status_code == 404
        response = bob.post("/v1/jobs", json=sft(data))
        assert (response.status_code, error_of(response)["type"]) == (404, "NotFoundError")


def test_requires_a_key_and_its_own_name_for_chunk(gateway, client):
    with gateway.client("") as nobody:
        assert nobody.put(f"/v1/data/chunks/{'0' * 64}", content=b"{}").status_code == 401
    wrong = client.put(f"/v1/data/chunks/{'0' * 64}", content=b"{}")
    assert (wrong.status_code, "SHA-256" in error_of(wrong)["message"]) == (422, True)
    assert client.put("/v1/data/chunks/..%2Fx", content=b"{}").status_code in (404, 422)
    large = client.put(f"/v1/data/chunks/{'0' * 64}", content=b" " * 300_000)
    assert large.status_code == 413


def test_keeps_bodies_from_waiting_for_images(gateway, client, monkeypatch):
    holds, goes_on = threading.Event(), threading.Event()

    def hangs(*_, **__):
        holds.set()
        assert goes_on.wait(120)

    monkeypatch.setattr(Images, "add", hangs)
    with gateway.client("bob") as bob, ThreadPoolExecutor(1) as threads:
        image = threads.submit(bob.put, f"/v1/images/{'0' * 64}", content=b"x")
        try:
            assert holds.wait(120)
            upload(client, 4)
            large = {"images": [f"{number:064x}" for number in range(1000)]}
            assert client.post("/v1/images/missing", json=large).json() == large
            assert not image.done()
        finally:
            goes_on.set()


def chunk(first):
    body = DataChunk(kind="sft", records=[[{"token_ids": [first, 1], "trained": [[1, 2]]}]])
    body = body.model_dump_json().encode()
    return hashlib.sha256(body).hexdigest(), body


def put_chunk(client, first):
    name, body = chunk(first)
    return client.put(f"/v1/data/chunks/{name}", content=body).status_code


def test_delays_only_the_tenant_whose_uploads_wait_for_the_disk(gateway, client, monkeypatch):
    numbers = 501, 502, 503
    slow, add_chunk = {chunk(number)[0] for number in numbers}, Uploads.add_chunk
    holds, goes_on = threading.Semaphore(0), threading.Event()

    def hangs(uploads, name, *arguments, **settings):
        if name in slow:
            holds.release()
            assert goes_on.wait(120)
        add_chunk(uploads, name, *arguments, **settings)

    monkeypatch.setattr(Uploads, "add_chunk", hangs)
    with gateway.client("bob") as bob, ThreadPoolExecutor(3) as threads:
        hanging = [threads.submit(put_chunk, bob, number) for number in numbers]
        try:
            assert holds.acquire(timeout=120)
            assert put_chunk(client, 504) == 200
            assert not holds.acquire(blocking=False)
        finally:
            goes_on.set()
        assert [one.result() for one in hanging] == [200] * 3


def test_does_not_look_at_every_file_for_each_chunk(gateway, client, monkeypatch):
    looks, files = [], LocalBlobs.files
    monkeypatch.setattr(LocalBlobs, "files", lambda self, key="": looks.append(key) or files(self, key))
    assert [put_chunk(client, first) for first in range(601, 611)] == [200] * 10
    assert len(looks) <= 1


def checkpointed(gateway, client, spec, *versions):
    """Create a job that has checkpoints of these versions."""
    job_id = client.post("/v1/jobs", json=spec).json()["job_id"]
    service = gateway.store.service()
    lease = service.acquire(job_id, "pool-x", 100, 0.0)
    for version in versions:
        view = CheckpointView(step=version, policy_version=version, path="/x", sha256="0" * 64, files={})
        service.add_checkpoint(lease, view)
    return job_id


def test_stores_version_of_the_job_that_another_begins_with(gateway, client, spec):
    first = checkpointed(gateway, client, spec, 5, 10)
    data = upload(client, 4, 5)
    for named, kept in ((first, f"{first}@10"), (f"{first}@5", f"{first}@5")):
        job = client.post("/v1/jobs", json=sft(data, initial_policy=named)).json()
        assert job["spec"]["initial_policy"] == kept
    rl = client.post("/v1/jobs", json={**spec, "initial_policy": first}).json()
    assert rl["spec"]["initial_policy"] == f"{first}@10"
    gone = client.post("/v1/jobs", json=sft(data, initial_policy=f"{first}@7"))
    assert (gone.status_code, "versions with a checkpoint: 5, 10" in error_of(gone)["hint"]) == (404, True)
    other = client.post("/v1/jobs", json=sft(data, initial_policy=first, adapter={"kind": "lora", "rank": 3}))
    assert (other.status_code, error_of(other)["field"]) == (422, "initial_policy")
    full = error_of(client.post("/v1/jobs", json=sft(data, initial_policy=first, adapter={"kind": "full"})))
    assert "an adapter of rank 8 and alpha 16, but this job trains all parameters" in full["message"]
    assert "adapter=tg.LoRA(rank=8, alpha=16.0)" in full["hint"]
    whole = checkpointed(gateway, client, {**spec, "adapter": {"kind": "full"}}, 5)
    lora = error_of(client.post("/v1/jobs", json=sft(data, initial_policy=whole)))
    assert "adapter=tg.FullParameters(), on the command line --full" in lora["hint"]
    with gateway.client("bob") as bob:
        foreign = bob.post("/v1/jobs", json={**spec, "initial_policy": first})
        assert foreign.status_code == 404


def test_returns_same_job_for_a_repeated_request(gateway, client, spec):
    origin = checkpointed(gateway, client, spec, 5)
    request = {"json": {**spec, "initial_policy": origin}, "headers": {"Idempotency-Key": "once"}}
    first = client.post("/v1/jobs", **request).json()
    service = gateway.store.service()
    newer = CheckpointView(step=10, policy_version=10, path="/x", sha256="0" * 64, files={})
    service.add_checkpoint(service.acquire(origin, "pool-x", 100, 200.0), newer)
    again = client.post("/v1/jobs", **request)
    assert again.json()["job_id"] == first["job_id"], again.text


def test_names_a_model_in_one_way_in_jobs(gateway, owner, spec):
    first = checkpointed(gateway, owner, {**spec, "model": "nano//"}, 5)
    assert owner.get(f"/v1/jobs/{first}").json()["spec"]["model"] == "nano"
    second = {**spec, "kind": "distillation", "model": "nano/", "teacher": "nano///", "initial_policy": first}
    made = owner.post("/v1/jobs", json=second)
    assert made.status_code == 201, made.text
    assert (made.json()["spec"]["model"], made.json()["spec"]["teacher"]) == ("nano", "nano")


@pytest.mark.parametrize(
    ("teacher", "model", "limits", "words"),
    [
        ("large", "nano", {}, ""),
        ("short", "nano", {}, "'short' is 512 tokens, but episodes may have 1024"),
        ("short", "nano", {"max_context_tokens": 513}, "'short' is 512 tokens, but episodes may have 513"),
        ("short", "nano", {"max_context_tokens": 512}, ""),
        ("nano", "short", {"max_context_tokens": 512}, ""),
        ("narrow", "nano", {}, "'narrow' has 255 token ids, but 'nano' may sample any of 256"),
        ("nano", "narrow", {}, ""),
    ],
)
def test_rejects_teacher_that_cannot_read_all_the_student_may_write(
    client, spec, teacher, model, limits, words
):
    distil = {**spec, "kind": "distillation", "model": model, "teacher": teacher, "limits": limits}
    reply = client.post("/v1/jobs", json=distil)
    if not words:
        assert reply.status_code == 201, reply.text
        return
    assert (reply.status_code, error_of(reply)["field"]) == (422, "teacher")
    assert words in error_of(reply)["message"]


def test_rejects_teacher_job_trained_on_model_of_shorter_context_too(gateway, client, spec):
    taught = checkpointed(gateway, client, {**spec, "model": "short"}, 5)
    reply = client.post("/v1/jobs", json={**spec, "kind": "distillation", "teacher": taught})
    assert (reply.status_code, error_of(reply)["field"]) == (422, "teacher")


def test_takes_own_model_or_own_job_as_teacher(gateway, client, spec):
    first = checkpointed(gateway, client, spec, 5)
    distil = {**spec, "kind": "distillation"}
    assert client.post("/v1/jobs", json={**distil, "teacher": "nano"}).json()["spec"]["teacher"] == "nano"
    assert (
        client.post("/v1/jobs", json={**distil, "teacher": first}).json()["spec"]["teacher"] == f"{first}@5"
    )
    unknown = client.post("/v1/jobs", json={**distil, "teacher": "mega"})
    assert (unknown.status_code, error_of(unknown)["field"]) == (422, "teacher")
    with gateway.client("bob") as bob:
        assert bob.post("/v1/jobs", json={**distil, "teacher": first}).status_code == 404
