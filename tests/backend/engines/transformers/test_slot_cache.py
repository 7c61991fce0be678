from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from backend.engines.asking import Answers, Asked
from backend.engines.transformers.engine import TransformersEngine
from tests.backend.engines.transformers.answers import ask, assert_same_logprobs, plain_model
from tinkergym.schema.sampling import Completion, SampleRequest

VOCABULARY = 64


def prompt(length: int, kind: int = 0) -> list[int]:
    return [(5 + 11 * kind + 7 * index * (kind + 1)) % VOCABULARY for index in range(length)]


def answers(engine: TransformersEngine, requests: Sequence[SampleRequest]) -> Answers:
    found = Asked(engine, requests).wait(60)
    assert len(found) == len(requests)
    return found


def complete(engine: TransformersEngine, requests: Sequence[SampleRequest]) -> dict[str, Completion]:
    found = answers(engine, requests)
    assert all(isinstance(answer, Completion) for answer in found.values()), found
    return {name: answer for name, answer in found.items() if isinstance(answer, Completion)}


@pytest.fixture
def directory(make_model: Callable[[str], Path]) -> Path:
    return make_model("qwen3")


@pytest.mark.parametrize(("max_slots", "cache_bytes"), [(3, 1 << 30), (256, 40_000)])
def test_makes_requests_wait_and_forgets_oldest_in_small_cache(start, directory, max_slots, cache_bytes):
    engine = start(directory, max_slots=max_slots, cache_bytes=cache_bytes)
    requests = [ask(f"r{i}", prompt(10 + i, i), session_id=f"s{i}", max_tokens=30) for i in range(10)]
    found = complete(engine, requests)
    second = [
        ask(f"q{i}", requests[i].prompt_ids + found[f"r{i}"].token_ids + [3], session_id=f"s{i}")
        for i in range(10)
    ]
    found |= complete(engine, second)
    assert engine.stats().evictions > 0
    model = plain_model(directory)
    for request in (*requests, *second):
        assert_same_logprobs(model, request, found[request.request_id])


def test_gives_same_tokens_to_a_request_that_gave_slot_back(start, directory):
    requests = [ask(f"r{i}", prompt(60, i), max_tokens=90) for i in range(3)]
    roomy = complete(start(directory), requests)
    # 128 positions of 2 layers with 2 heads of 8 numbers take 32 KiB: room for two short or one long one.
    tight = start(directory, cache_bytes=70_000)
    found = complete(tight, requests)
    assert tight.stats().preemptions > 0
    assert {name: answer.token_ids for name, answer in found.items()} == {
        name: answer.token_ids for name, answer in roomy.items()
    }
