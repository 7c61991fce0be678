from __future__ import annotations

import pytest

from tests.backend.engines.transformers.answers import (
    ask,
    assert_same_logprobs,
    complete,
    plain_model,
    prompt,
)


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
