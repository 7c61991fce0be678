"""How many calls of own training loops a tenant may have waiting."""

import pytest

from tinkergym.errors import TooManyRequestsError
from tinkergym.schema.policy_calls import CallResult, Logprobs, PolicySpec, Publish


def large(length):
    return Logprobs(sequences=[{"token_ids": [(7919 * place) % 50_000 for place in range(length)]}])


def test_waiting_calls_of_all_policies_of_a_tenant_share_one_limit_and_ended_ones_free_it(store):
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
