import pytest

from backend.store.store import JobLease
from tinkergym.errors import NotFoundError
from tinkergym.schema.events import JobState
from tinkergym.schema.summaries import JobQuery


def test_counts_unfinished_jobs_since_the_tenants_own_oldest(store, spec, clock):
    ada, bob = store.tenant("ada"), store.tenant("bob")
    bob.create_job(spec, {})
    assert ada.images.unfinished_since() is None
    created = []
    for clock.now in (2000.0, 3000.0):
        created.append(ada.create_job(spec, {}).job_id)
    assert ada.images.unfinished_since() == 2000.0
    ada.request_cancel(created[0])
    assert ada.images.unfinished_since() == 3000.0


def test_shows_another_tenants_job_as_one_that_never_was(store, spec):
    job_id = store.tenant("ada").create_job(spec, {}).job_id
    bob = store.tenant("bob")
    asks = [
        lambda job_id: bob.get_job(job_id),
        lambda job_id: bob.request_cancel(job_id),
        lambda job_id: bob.events_after(job_id, 0),
        lambda job_id: bob.checkpoints(job_id),
        lambda job_id: bob.get_job_and_worker(job_id),
        lambda job_id: bob.summaries(JobQuery(before=job_id)),
    ]
    for ask in asks:
        with pytest.raises(NotFoundError) as foreign:
            ask(job_id)
        with pytest.raises(NotFoundError) as unknown:
            ask("job-never")
        own, never = (str(caught.value.to_wire()) for caught in (foreign, unknown))
        assert own.replace(job_id, "") == never.replace("job-never", "")
    assert bob.summaries(JobQuery()).jobs == []
    assert store.tenant("ada").get_job(job_id).state == "queued"


def test_lists_jobs_page_by_page_newest_first(store, spec):
    ada = store.tenant("ada")
    ids = [ada.create_job(spec, {}).job_id for _ in range(5)]
    first = [job.job_id for job in ada.summaries(JobQuery(limit=3)).jobs]
    second = [job.job_id for job in ada.summaries(JobQuery(limit=3, before=first[-1])).jobs]
    assert first + second == ids[::-1]


def test_cancels_a_queued_job_immediately_and_only_once(store, spec):
    ada = store.tenant("ada")
    job_id = ada.create_job(spec, {}).job_id
    assert ada.request_cancel(job_id).state == "cancelled"
    assert ada.request_cancel(job_id).state == "cancelled"
    assert [event.body.state for event in ada.events_after(job_id, 0)] == ["queued", "cancelled"]
    assert store.service().acquire(job_id, "w", 30, now=0) is None


def test_leaves_cancellation_of_a_running_job_to_its_worker(store, spec):
    ada, service = store.tenant("ada"), store.service()
    job_id = ada.create_job(spec, {}).job_id
    lease = service.acquire(job_id, "w", 30, now=0)
    assert isinstance(lease, JobLease)
    assert not service.stop_request(job_id, now=0).cancel
    assert ada.request_cancel(job_id).state == "starting"
    assert service.stop_request(job_id, now=0).cancel
    service.set_state(lease, JobState.CANCELLED, "as asked")
    assert ada.get_job(job_id).state == "cancelled"


def test_reads_events_on_from_any_number(store, spec):
    ada, service = store.tenant("ada"), store.service()
    job_id = ada.create_job(spec, {}).job_id
    lease = service.acquire(job_id, "w", 30, now=0)
    for _ in range(4):
        service.set_state(lease, JobState.RUNNING)
    assert [event.seq for event in ada.events_after(job_id, 2, limit=3)] == [3, 4, 5]
    assert ada.events_after(job_id, 6) == []


def test_finds_policy_with_version_number_for_its_tenant_alone(store, spec):
    ada, bob = store.tenant("ada"), store.tenant("bob")
    job_id = ada.create_job(spec, {}).job_id
    assert ada.model_and_worker(job_id) == ada.model_and_worker(f"{job_id}@3") == ("nano", None)
    for unknown in (f"{job_id}@best", f"{job_id}@step:3", f"{job_id}@03", "job-unknown@3"):
        assert ada.model_and_worker(unknown) is None
    assert bob.model_and_worker(f"{job_id}@3") is None
