import pytest

from backend.errors import LeaseLostError
from backend.store.stored_facts import Fact


@pytest.fixture
def lease(store, spec):
    return store.service().acquire(store.tenant("ada").create_job(spec, {}).job_id, "w", 30, now=0)


def fact(number, body=b"{}", *, attempt=1, kind="step", agent=""):
    return Fact(kind=kind, number=number, attempt=attempt, body=body, agent=agent)


def test_restores_facts_by_number_and_attempt(store, lease):
    service = store.service()
    service.add_facts(lease, [fact(2, b"2"), fact(1, b"1 again", attempt=2), fact(1, b"1")])
    assert service.facts(lease.job_id, "step") == [b"1", b"1 again", b"2"]
    assert service.facts(lease.job_id, "publish") == []


def test_replaces_a_fact_that_is_written_again(store, lease):
    service = store.service()
    for body in (b"old", b"new"):
        service.add_facts(lease, [fact(1, body)])
    service.add_facts(lease, [fact(1, b"another's", agent="black")])
    assert service.facts(lease.job_id, "step") == [b"new", b"another's"]


def test_lets_worker_that_lost_the_job_write_none(store, lease):
    service = store.service()
    service.requeue_expired(now=1000)
    service.acquire(lease.job_id, "other", 30, now=1001)
    with pytest.raises(LeaseLostError):
        service.add_facts(lease, [fact(1)])
    assert service.facts(lease.job_id, "step") == []
