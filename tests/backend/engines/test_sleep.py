"""What sleeping gives back in the transformers engine; that it changes no answer stands in the contract."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path

import pytest

from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.settings.served_models import PACKAGED_MODELS
from tinkergym.schema.sampling import SampleRequest


@pytest.fixture
def engine():
    engine = TransformersEngine(Path(PACKAGED_MODELS["nano"]))
    yield engine
    engine.close()


def ask(engine, max_tokens, **options):
    done = threading.Event()
    settings = {"policy": "", "policy_version": 0, **options}
    request = SampleRequest(request_id="r", prompt_ids=[20, 30, 40], max_tokens=max_tokens, **settings)
    engine.submit([request], lambda _: done.set())
    return done


def test_gives_back_the_cache_and_merged_weights(engine, adapter):
    engine.publish("job", 1, adapter)
    assert ask(engine, 5, policy="job", policy_version=1, session_id="a/b").wait(60)
    policies, ((_, table),) = engine._model.policies, engine._model.policies._merged
    kept = [tensor for tensor in table if all(tensor is not own for own in policies.base.table)]
    held = [weakref.ref(thing) for thing in (engine._scheduler.table.cache, *kept)]
    assert len(held) > 10
    del table, kept
    assert engine.sleep()
    gc.collect()
    assert [reference() for reference in held if reference() is not None] == []


def test_does_not_sleep_while_engine_works(engine):
    done = ask(engine, 400)
    assert not engine.sleep()
    assert not engine.asleep
    assert done.wait(120)
    assert engine.sleep()


def test_does_not_sleep_when_closed(engine):
    engine.close()
    assert not engine.sleep()
