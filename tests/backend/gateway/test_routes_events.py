import pytest

from tinkergym.schema.events import Event, JobState, WarningEvent

pytestmark = pytest.mark.service


@pytest.fixture
def job_id(client, spec):
    return client.post("/v1/jobs", json=spec).json()["job_id"]


def frames(response):
    """Yield (id, event, data) of each server-sent event."""
    fields = {}
    for line in response.iter_lines():
        if line.startswith(":"):
            continue
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield fields["id"], fields["event"], Event.model_validate_json(fields["data"])
            fields = {}


def test_streams_past_and_new_events_in_order_until_the_end(gateway, client, job_id):
    service = gateway.store.service()
    seen = []
    with client.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        stream = frames(response)
        seen.append(next(stream))
        lease = service.acquire(job_id, "w", 30, now=0)
        seen.append(next(stream))
        service.append_event(lease, WarningEvent(name="n", message="line 1\nline 2 ünïcode"))
        seen.append(next(stream))
        service.set_state(lease, JobState.COMPLETED)
        seen.extend(stream)  # the stream ends by itself
    assert [number for number, _, _ in seen] == ["1", "2", "3", "4"]
    assert [kind for _, kind, _ in seen] == ["state", "state", "warning", "state"]
    assert [event for _, _, event in seen] == gateway.tenant().events_after(job_id, 0)


def test_resumes_stream_after_the_last_event_that_was_seen(gateway, client, job_id):
    service = gateway.store.service()
    lease = service.acquire(job_id, "w", 30, now=0)
    service.append_events(lease, [WarningEvent(name=str(number), message="m") for number in range(1200)])
    service.set_state(lease, JobState.FAILED, "why")
    whole = list(frames(client.get(f"/v1/jobs/{job_id}/events")))
    assert [number for number, _, _ in whole] == [str(number) for number in range(1, 1204)]
    rest = frames(client.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": "700"}))
    assert [number for number, _, _ in rest] == [str(number) for number in range(701, 1204)]


@pytest.mark.parametrize("last", ["2", "3", "99999999999999999999999"])
def test_ends_stream_of_ended_job_though_nothing_is_new(client, job_id, last):
    client.post(f"/v1/jobs/{job_id}/cancel")
    response = client.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": last})
    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "²", "9" * 5000])
def test_rejects_last_event_id_that_is_no_number(client, job_id, last):
    response = client.get(f"/v1/jobs/{job_id}/events", headers=[(b"last-event-id", last.encode("latin-1"))])
    assert (response.status_code, response.json()["error"]["field"]) == (422, "Last-Event-ID")


def test_shows_that_a_quiet_stream_lives(client, job_id, monkeypatch):
    monkeypatch.setattr("backend.gateway.routes_events.HEARTBEAT_SECONDS", 0.05)
    with client.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        assert any(line.startswith(":") for line in response.iter_lines())


def test_ends_a_stream_with_its_key(gateway, client, job_id):
    with client.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        stream = frames(response)
        next(stream)
        gateway.store.keys.revoke(gateway.store.keys.list(gateway.tenants["ada"])[0].key_id)
        service = gateway.store.service()
        lease = service.acquire(job_id, "w", 30, now=0)
        service.append_event(lease, WarningEvent(name="secret", message="m"))
        assert [event.body for _, _, event in stream if isinstance(event.body, WarningEvent)] == []
    assert client.get(f"/v1/jobs/{job_id}/events").status_code == 401
