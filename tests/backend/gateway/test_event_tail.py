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


def test_catches_end_that_comes_between_two_looks_at_the_store(gateway, client, job_id, monkeypatch):
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


def test_reads_store_once_for_hundreds_of_followers_of_a_job(gateway, client, job_id, monkeypatch):
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


def test_shows_many_watchers_of_several_jobs_their_own(gateway, client, spec, in_background):
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
        events = watcher.result(timeout=120)
        assert [event.seq for event in events] == [1, 2, 3, 4]
        assert {event.job_id for event in events} == {job_id}
