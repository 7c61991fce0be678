import pytest

from backend.engines.asking import Asked
from tinkergym.errors import InternalServiceError
from tinkergym.schema.sampling import Completion, SampleRequest

REQUESTS = [
    SampleRequest(request_id=name, policy="p", prompt_ids=[1], max_tokens=2, seed=0) for name in ("a", "b")
]


def answer(name):
    return Completion(
        request_id=name, token_ids=[1], sampling_logprobs=[-1.0], finish_reason="stop", policy_version=0
    )


class Engine:
    def __init__(self, *batches):
        self.batches = batches

    def submit(self, requests, deliver):
        for batch in self.batches:
            deliver([answer(name) for name in batch])


def test_returns_all_answers_as_soon_as_they_are_there():
    assert sorted(Asked(Engine(["b"], ["a"]), REQUESTS).wait(60.0)) == ["a", "b"]


def test_returns_those_that_came_after_its_time():
    assert sorted(Asked(Engine(["b"]), REQUESTS).wait(0.0)) == ["b"]


@pytest.mark.parametrize("batches", [(["a", "a"],), (["a"], ["a"]), (["stranger"],)])
def test_catches_engine_that_answers_twice_or_unasked(batches):
    with pytest.raises(InternalServiceError):
        Asked(Engine(*batches), REQUESTS).wait(60.0)
