from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from backend.compute.weights import AdapterWeights
from backend.engines.asking import Asked
from backend.engines.protocol import SamplingEngine
from backend.engines.scripted.scripted_engine import ScriptedEngine
from tinkergym.errors import TemplateError
from tinkergym.schema.sampling import SampleRequest

NO_WEIGHTS = AdapterWeights(rank=1, alpha=1.0, tensors={})


def script(request: SampleRequest) -> list[int]:
    if request.prompt_ids == [13]:
        raise TemplateError("thirteen")
    if request.prompt_ids == [14]:
        raise ZeroDivisionError
    return [request.prompt_ids[-1] + step for step in (1, 2, 3, 4)]


def ask(prompt_ids: list[int], **options: object) -> SampleRequest:
    settings = {"policy": "", "policy_version": 0, "max_tokens": 10}
    return SampleRequest.model_validate({"request_id": "r", "prompt_ids": prompt_ids} | settings | options)


@pytest.fixture
def engine() -> Iterator[SamplingEngine]:
    made = ScriptedEngine(script, context_length=8, logprob=-0.5)
    yield made
    made.close()


def test_cuts_script_by_stop_ids_limit_and_context(engine):
    free, stopped, limited, full = engine.generate_together(
        [ask([20]), ask([20], stop_ids=[22]), ask([20], max_tokens=3), ask([1] * 6)]
    )
    assert (free.token_ids, free.finish_reason) == ([21, 22, 23, 24], "length")
    assert (stopped.token_ids, stopped.finish_reason) == ([21, 22], "stop")
    assert limited.token_ids == [21, 22, 23]
    assert full.token_ids == [2, 3]
    assert full.sampling_logprobs == [-0.5, -0.5]


def test_turns_what_the_script_raises_into_the_failure(engine):
    named, unnamed, too_long = engine.generate_together([ask([13]), ask([14]), ask([1] * 8)])
    assert named.error.type == "TemplateError"
    assert "ZeroDivisionError" in unnamed.error.message
    assert too_long.error.type == "PromptTooLongError"


def test_replaces_version_by_a_published_one(engine):
    engine.publish("job", 1, NO_WEIGHTS)
    engine.publish("job", 2, NO_WEIGHTS)
    old, new = engine.generate_together([ask([20], policy="job", policy_version=v) for v in (1, 2)])
    assert old.error.type == "PolicyVersionGoneError"
    assert new.policy_version == 2
    assert engine.loaded() == {"job": 2}
    engine.retire("job")
    assert engine.loaded() == {}


def test_survives_receiver_that_raises(engine):
    called = threading.Event()

    def deliver(answers):
        called.set()
        raise RuntimeError("receiver is broken")

    engine.submit([ask([20])], deliver)
    assert called.wait(60.0)
    assert Asked(engine, [ask([20], max_tokens=2)]).wait(60.0)["r"].token_ids == [21, 22]


def test_answers_from_another_thread_and_with_failures_after_closing(engine):
    threads, done = [], threading.Event()

    def deliver(answers):
        threads.append(threading.current_thread())
        done.set()

    engine.submit([ask([20])], deliver)
    assert done.wait(60.0)
    assert threads[0] is not threading.current_thread()
    engine.close()
    late = []
    engine.submit([ask([20])], late.extend)
    assert late[0].error.type == "ServiceUnavailableError"
