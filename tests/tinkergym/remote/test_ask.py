import json

import pytest

from tinkergym.errors import InternalServiceError, NotFoundError, ServiceUnavailableError
from tinkergym.remote.ask import ask, sampled_together
from tinkergym.schema.sampling import SampleRequest


class Wire:
    """Stands for a connection: gives prepared answers, or raises them."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.bodies = []

    def call(self, method, path, *, body, timeout_seconds):
        self.bodies.append(json.loads(body))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def completion(request_id="r"):
    fields = {
        "request_id": request_id,
        "token_ids": [1],
        "sampling_logprobs": [-0.5],
        "finish_reason": "stop",
        "policy_version": 2,
    }
    return json.dumps(fields).encode() + b"\n"


def request(request_id="r"):
    return SampleRequest(request_id=request_id, policy="nano", prompt_ids=[1], max_tokens=4)


def test_retries_policy_that_is_away():
    slept = []
    wire = Wire(ServiceUnavailableError("loading"), b"", completion())
    assert ask(wire, request(), sleep=slept.append).policy_version == 2
    assert len(wire.bodies) == 3
    assert len(slept) == 2


def test_ends_its_patience():
    with pytest.raises(ServiceUnavailableError):
        ask(Wire(*[ServiceUnavailableError("loading")] * 1000), request(), sleep=lambda seconds: None)


def test_keeps_type_of_a_refusal_without_retry():
    refused = json.dumps({"request_id": "r", "error": NotFoundError("no policy").to_wire()}).encode()
    wire = Wire(refused)
    with pytest.raises(NotFoundError):
        ask(wire, request())
    assert len(wire.bodies) == 1


@pytest.mark.parametrize("answer", [b"no JSON", b'{"request_id": "r"}'])
def test_reports_meaningless_answer_as_error_of_the_service(answer):
    with pytest.raises(InternalServiceError):
        ask(Wire(answer), request())


def test_returns_batch_by_name_and_retries_one_that_ends_early():
    wire = Wire(completion("b"), completion("b") + completion("a"))
    found = sampled_together(wire, [request("a"), request("b")], sleep=lambda seconds: None)
    assert sorted(found) == ["a", "b"]
    assert [body["together"] for body in wire.bodies] == [True, True]
