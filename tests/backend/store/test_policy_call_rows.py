"""The calls of own training loops: their numbers, their results, and how many may wait."""

from types import SimpleNamespace

import pytest

from tinkergym.errors import CheckpointCorruptError, ConflictError, NotFoundError, TooManyRequestsError
from tinkergym.schema.jobs.own_loop import PolicySpec
from tinkergym.schema.policy_calls import CallResult, Logprobs, Publish, Save


def large(length):
    return Logprobs(sequences=[{"token_ids": [(7919 * place) % 50_000 for place in range(length)]}])


def test_shares_one_limit_between_a_tenants_waiting_calls(store):
    store.keys.ensure_tenant("eve")
    store.keys.ensure_tenant("finn")
    eve, finn = store.tenant("eve"), store.tenant("finn")
    calls, service = store.policy_calls(), store.service()
    one, other, ended = (eve.create_job(PolicySpec(), {}).job_id for _ in range(3))
    theirs = finn.create_job(PolicySpec(), {}).job_id
    # A single call is never too large: the gateway limits its body.
    calls.add(one, 1, large(2000), most_bytes=100)
    for policy in (one, other):
        with pytest.raises(TooManyRequestsError):
            calls.add(policy, 1 + (policy == one), large(2000), most_bytes=100)
    calls.add(one, 1, large(2000), most_bytes=100)  # sent again
    calls.add(theirs, 1, large(2000), most_bytes=100)
    lease = service.acquire(one, "pool-1", 30, 0.0)
    service.finish_call(lease, 1, CallResult())
    calls.add(ended, 1, large(2000), most_bytes=100)
    eve.request_cancel(ended)
    calls.add(other, 1, Publish(), most_bytes=100)


@pytest.fixture
def policy(store):
    """A policy of a tenant, its lease, and the stores that gateway and worker use."""
    job_id = store.tenant("ada").create_job(PolicySpec(), {}).job_id
    lease = store.service().acquire(job_id, "pool-1", 30, 0.0)
    return SimpleNamespace(id=job_id, lease=lease, calls=store.policy_calls(), worker=store.service())


def test_keeps_one_call_per_number_without_gaps(policy):
    policy.calls.add(policy.id, 1, Publish())
    policy.calls.add(policy.id, 1, Publish())
    policy.calls.add(policy.id, 2, Save())
    assert policy.calls.last(policy.id) == 2
    for seq, call in ((1, Save()), (2, Publish()), (4, Publish())):
        with pytest.raises(ConflictError) as refused:
            policy.calls.add(policy.id, seq, call)
        assert refused.value.field == "seq"
    assert [policy.worker.next_call(policy.id, after).call for after in (0, 1)] == [Publish(), Save()]
    assert policy.worker.next_call(policy.id, 2) is None


def test_does_not_reuse_a_forgotten_number(policy):
    for seq in (1, 2, 3):
        policy.calls.add(policy.id, seq, Publish())
        policy.worker.finish_call(policy.lease, seq, CallResult())
    policy.worker.forget_calls(policy.lease, 1002)
    with pytest.raises(NotFoundError):
        policy.calls.result(policy.id, 2)
    assert policy.calls.result(policy.id, 3) == CallResult()
    for late in (1, 2):
        with pytest.raises(ConflictError):
            policy.calls.add(policy.id, late, Save())


def test_keeps_first_result_and_counts_its_tokens_once(policy):
    policy.calls.add(policy.id, 1, Publish())
    assert policy.calls.result(policy.id, 1) is None
    for loss in (1.0, 2.0):
        policy.worker.finish_call(policy.lease, 1, CallResult(loss=loss), tokens=5)
    assert policy.calls.result(policy.id, 1).loss == 1.0
    assert policy.worker.next_call(policy.id, 0).result.loss == 1.0
    assert policy.worker.job(policy.id).used_tokens == 5


def test_keeps_result_of_covered_call_that_cannot_be_repeated(policy):
    for seq in (1, 2, 3):
        policy.calls.add(policy.id, seq, Publish())
        policy.worker.finish_call(policy.lease, seq, CallResult(version=seq))
    policy.worker.forget_calls(policy.lease, 2)
    assert [policy.calls.result(policy.id, seq).version for seq in (1, 2, 3)] == [1, 2, 3]
    for after in (0, 1):
        with pytest.raises(CheckpointCorruptError):
            policy.worker.next_call(policy.id, after)
    assert policy.worker.next_call(policy.id, 2).call == Publish()


def test_bounds_the_calls_that_wait(policy, monkeypatch):
    monkeypatch.setattr("backend.store.policy_call_rows.MOST_CALLS_AHEAD", 2)
    for seq in (1, 2):
        policy.calls.add(policy.id, seq, Publish())
    with pytest.raises(TooManyRequestsError):
        policy.calls.add(policy.id, 3, Publish())
    policy.worker.finish_call(policy.lease, 1, CallResult())
    policy.calls.add(policy.id, 3, Publish())


def test_records_a_published_version_with_its_hash(policy):
    policy.worker.record_publish(policy.lease, 3, "a" * 64)
    assert policy.worker.job(policy.id).policy_version == 3
    assert policy.worker.version_sha256(policy.id, 3) == "a" * 64
