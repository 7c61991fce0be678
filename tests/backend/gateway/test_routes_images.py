import hashlib

import pytest

from backend.processes.limited_child import LimitedChild
from backend.store.image_rows import ImageRow
from benchmarks.hostile_images import progressive
from tests.backend.vlm import picture
from tinkergym.images.stored_images import image_file
from tinkergym.remote.image_upload import ImageUpload
from tinkergym.remote.transport import Connection

pytestmark = pytest.mark.service


def put(client, file, data=None):
    return client.put(f"/v1/images/{file.sha256}", content=file.data if data is None else data)


def missing(client, *files):
    answer = client.post("/v1/images/missing", json={"images": [file.sha256 for file in files]})
    return answer.json()["images"]


def test_keeps_an_image_for_its_tenant_alone(gateway, client):
    one, other = picture(1), picture(2)
    assert put(client, one).json() == {"sha256": one.sha256}
    assert put(client, one).status_code == 200
    assert missing(client, one, other) == [other.sha256]
    shown = client.get(f"/v1/images/{one.sha256}")
    assert (shown.content, shown.headers["content-type"]) == (one.data, "image/png")
    assert shown.headers["x-content-type-options"] == "nosniff"
    with gateway.client("bob") as bob:
        assert missing(bob, one) == [one.sha256]
        assert bob.get(f"/v1/images/{one.sha256}").status_code == 404
    with gateway.client("") as stranger:
        assert put(stranger, one).status_code == 401


def test_rejects_what_is_no_image_of_that_name(client):
    one = picture(3)
    answers = [
        put(client, one, picture(4).data),
        put(client, one, b""),
        client.put("/v1/images/x", content=b""),
    ]
    assert [answer.status_code for answer in answers] == [422, 422, 422]
    assert missing(client, one) == [one.sha256]


def test_never_keeps_a_hostile_image(client):
    data = progressive(400, 400, 1000)
    answer = client.put(f"/v1/images/{hashlib.sha256(data).hexdigest()}", content=data)
    assert (answer.status_code, answer.json()["error"]["type"]) == (422, "InvalidImageError")
    names = {"images": [hashlib.sha256(data).hexdigest()]}
    assert client.post("/v1/images/missing", json=names).json() == names


def test_checks_images_in_a_child_of_limited_time_and_memory(client, monkeypatch):
    asked, ask = [], LimitedChild.ask
    monkeypatch.setattr(LimitedChild, "ask", lambda self, data: asked.append(data) or ask(self, data))
    one = picture(7)
    assert put(client, one).status_code == 200
    assert [data.endswith(one.data) for data in asked] == [True]


def test_sends_each_image_once_and_asks_what_the_service_has(gateway, monkeypatch):
    sent = []
    call = Connection.call

    def counting(self, method, path, **options):
        sent.append((method, path))
        return call(self, method, path, **options)

    monkeypatch.setattr(Connection, "call", counting)
    files = [picture(number) for number in (5, 6)]
    hashes = [file.sha256 for file in files] * 8
    with Connection(gateway.url, token=gateway.keys["ada"]) as connection:
        upload = ImageUpload(connection, "/v1/images")
        upload.send(hashes)
        upload.send(hashes)
        assert [method for method, _ in sent] == ["POST", "PUT", "PUT"]
        ImageUpload(connection, "/v1/images").send(hashes)  # as another process would
        assert [method for method, _ in sent] == ["POST", "PUT", "PUT", "POST"]
    assert image_file(files[0].data) is files[0]


def test_evicts_images_older_than_unfinished_jobs_for_theirs(gateway, client, spec):
    client.post("/v1/jobs", json=spec)
    files = [picture(number) for number in range(20, 25)]
    for file in files[:4]:
        put(client, file)
    refused = put(client, files[4])
    assert refused.status_code == 413
    assert "limits.stored_images" in refused.json()["error"]["hint"]
    old = ImageRow(sha256=files[0].sha256, bytes=len(files[0].data), used_at=0.0)
    (tenant,) = gateway.store.service().image_owners(old.sha256)
    gateway.store.tenant(tenant).images.add([old])
    assert put(client, files[4]).status_code == 200
    assert missing(client, *files) == [files[0].sha256]
