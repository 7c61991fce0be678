import pytest

from backend.store.tenant_submissions import SENT_ADAPTER
from tinkergym.errors import ConflictError, PayloadTooLargeError
from tinkergym.schema.events import CheckpointView, JobState, StateEvent
from tinkergym.schema.jobs.view import InstalledPack
from tinkergym.schema.summaries import JobQuery


def test_queues_new_job_with_its_effective_configuration(store, spec, clock):
    job = store.tenant("ada").create_job(spec, {"board": "0.1.0"})
    assert job.spec == spec
    assert (job.state, job.step, job.created_at, job.packs) == ("queued", 0, clock.now, {"board": "0.1.0"})
    assert store.tenant("ada").get_job(job.job_id) == job
    (event,) = store.tenant("ada").events_after(job.job_id, 0)
    assert event.seq == 1
    assert event.body == StateEvent(state=JobState.QUEUED)


def test_keeps_with_the_job_what_the_client_has_installed(store, spec):
    packs = [InstalledPack(name="board", distribution="tinkergym-board", version="0.1.0")]
    job = store.tenant("ada").create_job(spec, {}, client_packs=packs)
    assert job.client_packs == packs
    assert store.tenant("ada").get_job(job.job_id) == job


def test_makes_one_job_of_same_idempotency_key_and_spec(store, spec):
    ada = store.tenant("ada")
    first = ada.create_job(spec, {}, "key-1")
    assert ada.create_job(spec, {}, "key-1") == first
    assert len(ada.summaries(JobQuery()).jobs) == 1


def test_rejects_idempotency_key_for_another_spec(store, spec):
    ada = store.tenant("ada")
    ada.create_job(spec, {}, "key-1")
    with pytest.raises(ConflictError, check=lambda error: error.code == "key_used"):
        ada.create_job(spec.model_copy(update={"steps": 6}), {}, "key-1")


def test_makes_one_job_of_same_request_whatever_it_resolves_to(store, spec):
    ada = store.tenant("ada")
    first = ada.create_job(spec, {}, "key-1", request_sha256="a" * 64)
    newer = spec.model_copy(update={"steps": 6})
    assert ada.create_job(newer, {}, "key-1", request_sha256="a" * 64) == first
    assert ada.create_job(spec, {}, "key-1", request_sha256="b" * 64) == first
    assert ada.job_of_request("key-1", "a" * 64) == first
    assert ada.job_of_request("key-1", "b" * 64) is None
    assert store.tenant("bob").job_of_request("key-1", "a" * 64) is None
    with pytest.raises(ConflictError, check=lambda error: error.code == "key_used"):
        ada.create_job(newer, {}, "key-1", request_sha256="b" * 64)


def test_lets_tenants_use_the_same_idempotency_key(store, spec):
    assert (
        store.tenant("ada").create_job(spec, {}, "k").job_id
        != store.tenant("bob").create_job(spec, {}, "k").job_id
    )


def test_limits_all_adapters_that_a_tenant_has_sent(store, spec):
    ada, bob = store.tenant("ada"), store.tenant("bob")
    kept = CheckpointView(step=1, policy_version=1, sha256="a" * 64, files={"a": 60, "b": 20})
    job = ada.add_adapter(ada.new_job_id(), spec, kept, "a" * 64, most_bytes=100)
    ada.create_job(spec, {}, f"{SENT_ADAPTER}of-their-own", request_sha256="b" * 64)  # is none
    ada.require_room_for_adapter(20, 100)
    bob.require_room_for_adapter(100, 100)
    with pytest.raises(PayloadTooLargeError) as refused:
        ada.require_room_for_adapter(21, 100)
    assert refused.value.field == "source"
    with pytest.raises(PayloadTooLargeError):
        ada.add_adapter(ada.new_job_id(), spec, kept, "c" * 64, most_bytes=100)
    ada.delete_job(job.job_id)
    ada.require_room_for_adapter(100, 100)
