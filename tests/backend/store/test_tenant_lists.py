import pytest

from tinkergym.errors import NotFoundError
from tinkergym.schema.summaries import JobLabels, JobQuery


@pytest.fixture
def ada(store):
    store.keys.ensure_tenant("ada")
    return store.tenant("ada")


@pytest.fixture
def job_id(ada, spec):
    return ada.create_job(spec, {}).job_id


def test_keeps_what_the_owner_noted(ada, store, job_id):
    assert ada.labels(job_id) == JobLabels()
    ada.set_labels(job_id, JobLabels(name="first", tags=["a"]))
    assert ada.labels(job_id).tags == ["a"]
    assert [one.name for one in ada.summaries(JobQuery()).jobs] == ["first"]
    for call in (lambda bob: bob.labels(job_id), lambda bob: bob.set_labels(job_id, JobLabels())):
        with pytest.raises(NotFoundError):
            call(store.tenant("bob"))


def test_adds_up_what_jobs_used(ada, store, job_id):
    (used,) = ada.usage()
    assert (used.tenant_id, used.jobs, used.unfinished, used.used_tokens) == ("ada", 1, 1, 0)
    ada.request_cancel(job_id)
    assert ada.usage()[0].unfinished == 0
    assert store.tenant("bob").usage() == []
    assert len(store.tenant("bob").usage(of_all=True)) == 1
