import contextlib

import pytest

from backend.store.tenant import TenantStore
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


def test_what_happened_and_what_happens_arrives_in_order_until_the_end(gateway, client, job_id):
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


def test_a_stream_is_taken_up_after_the_last_event_that_was_seen(gateway, client, job_id):
    service = gateway.store.service()
    lease = service.acquire(job_id, "w", 30, now=0)
    service.append_events(lease, [WarningEvent(name=str(number), message="m") for number in range(1200)])
    service.set_state(lease, JobState.FAILED, "why")
    whole = list(frames(client.get(f"/v1/jobs/{job_id}/events")))
    assert [number for number, _, _ in whole] == [str(number) for number in range(1, 1204)]
    rest = frames(client.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": "700"}))
    assert [number for number, _, _ in rest] == [str(number) for number in range(701, 1204)]


@pytest.mark.parametrize("last", ["2", "3", "99999999999999999999999"])
def test_a_stream_of_an_ended_job_ends_although_there_is_nothing_new(client, job_id, last):
    client.post(f"/v1/jobs/{job_id}/cancel")
    response = client.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": last})
    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize("last", ["x", "-1", "1.5", "²", "9" * 5000])
def test_a_last_event_id_that_is_no_number_is_refused(client, job_id, last):
    response = client.get(f"/v1/jobs/{job_id}/events", headers=[(b"last-event-id", last.encode("latin-1"))])
    assert (response.status_code, response.json()["error"]["field"]) == (422, "Last-Event-ID")


def test_an_end_that_comes_between_two_looks_at_the_store_is_not_lost(gateway, client, job_id, monkeypatch):
    service = gateway.store.service()
    lease = service.acquire(job_id, "w", 30, now=0)
    look = TenantStore.events_after

    def look_then_end(self, *arguments):
        found = look(self, *arguments)
        if not found:
            monkeypatch.setattr(TenantStore, "events_after", look)
            service.set_state(lease, JobState.COMPLETED)
        return found

    monkeypatch.setattr(TenantStore, "events_after", look_then_end)
    monkeypatch.setattr("backend.gateway.routes_events.HEARTBEAT_SECONDS", 0.05)
    seen = list(frames(client.get(f"/v1/jobs/{job_id}/events")))
    assert seen[-1][2].body.state is JobState.COMPLETED


def test_a_quiet_stream_shows_that_it_lives(client, job_id, monkeypatch):
    monkeypatch.setattr("backend.gateway.routes_events.HEARTBEAT_SECONDS", 0.05)
    with client.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        assert any(line.startswith(":") for line in response.iter_lines())


def test_hundreds_may_follow_a_job_and_cost_the_store_one_look(gateway, client, job_id, monkeypatch):
    looks = []
    look = TenantStore.events_after

    def counted(store, of_job, seq, limit=1000):
        if of_job == job_id:
            looks.append(seq)
        return look(store, of_job, seq, limit)

    monkeypatch.setattr(TenantStore, "events_after", counted)
    service = gateway.store.service()
    lease = service.acquire(job_id, "w", 30, now=0)
    with contextlib.ExitStack() as stack:
        followers = [
            frames(stack.enter_context(own.stream("GET", f"/v1/jobs/{job_id}/events")))
            for own in [stack.enter_context(gateway.client()) for _ in range(40)]
        ]
        for follower in followers:
            assert [next(follower)[0], next(follower)[0]] == ["1", "2"]
        looks.clear()
        service.append_event(lease, WarningEvent(name="n", message="m"))
        assert {next(follower)[0] for follower in followers} == {"3"}
        assert 0 < looks.count(2) < 10


def test_many_watchers_of_several_jobs_each_see_their_own(gateway, client, spec, in_background):
    service = gateway.store.service()
    ids = [client.post("/v1/jobs", json=spec).json()["job_id"] for _ in range(2)]

    def watch(job_id):
        with gateway.client() as own:
            return [event for _, _, event in frames(own.get(f"/v1/jobs/{job_id}/events"))]

    watchers = [(job_id, in_background(watch, job_id)) for job_id in ids * 2]
    for job_id in ids:
        lease = service.acquire(job_id, "w", 30, now=0)
        service.append_event(lease, WarningEvent(name=job_id, message="m"))
        service.set_state(lease, JobState.COMPLETED)
    for job_id, watcher in watchers:
        events = watcher.result(timeout=20)
        assert [event.seq for event in events] == [1, 2, 3, 4]
        assert {event.job_id for event in events} == {job_id}


def test_a_stream_ends_with_its_key(gateway, client, job_id):
    with client.stream("GET", f"/v1/jobs/{job_id}/events") as response:
        stream = frames(response)
        next(stream)
        gateway.store.keys.revoke(gateway.store.keys.list(gateway.tenants["ada"])[0].key_id)
        service = gateway.store.service()
        lease = service.acquire(job_id, "w", 30, now=0)
        service.append_event(lease, WarningEvent(name="secret", message="m"))
        assert [event.body for _, _, event in stream if isinstance(event.body, WarningEvent)] == []
    assert client.get(f"/v1/jobs/{job_id}/events").status_code == 401
