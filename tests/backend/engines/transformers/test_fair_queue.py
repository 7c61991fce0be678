from __future__ import annotations

from dataclasses import dataclass

import pytest

from backend.engines.transformers.fair_queue import FairQueue, Held
from backend.engines.transformers.request_state import RequestState
from tinkergym.errors import ServiceUnavailableError
from tinkergym.schema.sampling import SampleRequest


@dataclass(frozen=True)
class Policy:
    name: str


def state(name: str, session_id: str = "", policy: str = "p") -> RequestState:
    request = SampleRequest(
        request_id=name, policy=policy, prompt_ids=[1], max_tokens=1, session_id=session_id
    )
    return RequestState(request=request, policy=Policy(policy), deliver=print, limit=2)


@pytest.fixture
def queue() -> FairQueue:
    return FairQueue()


def drained(queue: FairQueue) -> str:
    names = ""
    held = Held()
    while queue:
        expected = queue.first(held)
        popped = queue.pop_first(held)
        assert popped is expected
        names += popped.request.request_id
    return names


@pytest.mark.parametrize("session_id", ["", "ada/x", "ada/"])
def test_keeps_order_of_one_owners_requests(queue, session_id):
    queue.extend(state(name, session_id) for name in "abcde")
    assert [each.request.request_id for each in queue] == [*"abcde"]
    assert drained(queue) == "abcde"


def test_rotates_owners_however_much_one_asks_for(queue):
    queue.extend(state(name, "ada/1") for name in "ABCDEF")
    queue.extend(state(name, "bob/1") for name in "xy")
    queue.extend([state("7", "cyd/1")])
    assert drained(queue) == "Ax7ByCDEF"


def test_rotates_jobs_whose_episodes_the_service_plays_too(queue):
    queue.extend(state(name, "lease-1", policy="job-1") for name in "ABC")
    queue.extend(state(name, "lease-2", policy="job-2") for name in "xy")
    assert drained(queue) == "AxByC"


def test_serves_first_the_tenant_with_fewest_requests_in_slots(queue):
    held = Held(
        [state("1", "ada/1", policy="p"), state("2", "ada/1", policy="q"), state("3", "bob/1", policy="s")]
    )
    queue.extend([state("A", "ada/1", policy="r"), state("x", "bob/1", policy="s")])
    assert queue.pop_first(held).request.request_id == "x"


def test_serves_first_the_tenants_job_with_fewest_requests_in_slots(queue):
    held = Held(
        [state("1", "ada/1", policy="p"), state("2", "ada/1", policy="p"), state("3", "ada/1", policy="q")]
    )
    queue.extend([state("A", "ada/1", policy="p"), state("x", "ada/1", policy="q")])
    assert queue.pop_first(held).request.request_id == "x"


def test_takes_returned_request_next(queue):
    queue.extend([state("A", "ada/1"), state("x", "bob/1"), state("B", "ada/1")])
    first = queue.pop_first(Held())
    queue.put_back(first)
    assert drained(queue) == "AxB"


def test_drops_answered_requests_wherever_they_stand(queue):
    queue.extend(state(name, f"{name.lower()}/1") for name in "AAB")
    middle = [*queue][1]
    for each in (middle, [*queue][2]):
        each.fail(ServiceUnavailableError("gone"))
    queue.drop_answered()
    assert drained(queue) == "A"
