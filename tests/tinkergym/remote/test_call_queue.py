"""Calls keep their order and their futures, whatever is refused, cancelled or given up."""

import asyncio

import pytest

from tests.tinkergym.remote.policy_service import POLICY_ID, StubApi
from tinkergym.errors import (
    ConflictError,
    NotFoundError,
    PayloadTooLargeError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
from tinkergym.remote.call_queue import CallQueue
from tinkergym.schema.events import JobState
from tinkergym.schema.policy_calls import OptimStep, Publish, Save

STEP = OptimStep(learning_rate=1e-3)


@pytest.fixture
def api():
    return StubApi()


@pytest.fixture
def calls(api):
    queue = CallQueue(api, POLICY_ID, full_pause_seconds=0.0)
    yield queue
    queue.close(wait=False)


def version(result):
    return result.version


@pytest.mark.parametrize("error", [NotFoundError("no such version"), PayloadTooLargeError("over 8 MiB")])
def test_reuses_number_of_a_call_that_the_service_refuses(api, calls, error):
    api.service.refuse["save"] = error
    futures = [calls.add(call, version) for call in (Publish(), Save(), STEP, Publish())]
    with pytest.raises(type(error)):
        futures.pop(1).result(60.0)
    assert [future.result(60.0) for future in futures] == [1, 2, 3]
    assert [call.op for call in api.service.stored] == ["publish", "optim_step", "publish"]


@pytest.mark.parametrize(
    "error",
    [ServiceUnavailableError("lost"), ConflictError("there is another call 1", field="seq")],
)
def test_sends_nothing_after_unknown_outcome_or_another_scripts_calls(api, calls, error):
    api.service.refuse["publish"] = error
    with pytest.raises(type(error)):
        calls.add(Publish(), version).result(60.0)
    with pytest.raises(type(error)):
        calls.add(STEP, version)
    assert api.service.stored == []


def test_retries_call_for_which_there_is_no_room_yet(api, calls):
    api.service.refuse["publish"] = TooManyRequestsError("as many wait as may")
    assert calls.add(Publish(), version).result(60.0) == 1


def test_resolves_cancelled_future_and_later_ones_all_the_same(api, calls):
    api.service.done.clear()
    future = calls.add(Publish(), version)
    assert not future.cancel()

    async def waited():
        await asyncio.wait_for(asyncio.wrap_future(calls.add(STEP, version)), 0.01)

    with pytest.raises(TimeoutError):
        asyncio.run(waited())
    api.service.done.set()
    assert future.result(60.0) == 1
    assert calls.add(Publish(), version).result(60.0) == 3


def test_waits_for_results_when_closing_unless_told_otherwise(api, calls):
    futures = [calls.add(call, version) for call in (STEP, Publish())]
    calls.close()
    assert [future.result(0) for future in futures] == [1, 2]
    with pytest.raises(ConflictError):
        calls.add(STEP, version)


def test_fails_given_up_calls_without_awaiting_a_placeless_policy(api, calls):
    api.service.done.clear()
    future = calls.add(STEP, version)
    assert api.service.asked.wait(60.0)
    calls.close(wait=False)
    with pytest.raises(ConflictError):
        future.result(60.0)


def test_tells_each_reason_to_wait_once(api, calls, said_by):
    api.service.done.clear()
    api.service.state, api.service.reason = JobState.QUEUED, "loading the model 'nano'"
    future = calls.add(STEP, version)
    for _ in range(3):
        assert api.service.asked.wait(60.0)
        api.service.asked.clear()
    api.service.state, api.service.reason = JobState.PAUSED, "its budget is used up"
    for _ in range(3):
        assert api.service.asked.wait(60.0)
        api.service.asked.clear()
    api.service.done.set()
    future.result(60.0)
    told = said_by("tinkergym.remote.call_queue")
    assert [("loading" in one, "budget" in one) for one in told] == [(True, False), (False, True)]
