"""Which separate batch is computed next, and how much time the queue gets between them."""

import pytest

from backend.engines.transformers.separate_batches import SeparateBatches


def played(batches, *, seconds, tenants, steps, step_seconds=1.0):
    """Let batches and a busy queue compute in turn; return the seconds of each."""
    took = {"queue": 0.0}
    for _ in range(steps):
        if batches.is_due(queue_idle=False):
            batch = batches.next()
            took[batch] = took.get(batch, 0.0) + seconds
            batches.batch_took(seconds, queue_tenants=tenants)
        else:
            took["queue"] += step_seconds
            batches.queue_took(step_seconds)
    return took


def test_runs_one_batch_per_tenant_in_turns():
    batches = SeparateBatches(3)
    for owner, name in (("ada", "a1"), ("ada", "a2"), ("bob", "b1"), ("eve", "e1")):
        batches.add(owner, name)
    assert [batches.next() for _ in range(6)] == ["a1", "b1", "e1"] * 2
    batches.remove("a1")
    assert {batches.next() for _ in range(3)} == {"a2", "b1", "e1"}


def test_limits_tenants_with_a_cache_and_lets_others_take_turns():
    batches = SeparateBatches(1)
    for owner, name in (("ada", "a1"), ("ada", "a2"), ("ada", "a3"), ("bob", "b1")):
        batches.add(owner, name)
    order = []
    while batches:
        order.append(batches.next())
        batches.remove(order[-1])
    assert order == ["a1", "a2", "b1", "a3"]


@pytest.mark.parametrize("tenants", [1, 2, 4])
@pytest.mark.parametrize("owners", [1, 3])
@pytest.mark.parametrize("seconds", [0.5, 20.0])
def test_gives_tenants_equal_time_however_long_their_forwards_take(tenants, owners, seconds):
    batches = SeparateBatches(4)
    for owner in range(owners):
        batches.add(str(owner), owner)
    took = played(batches, seconds=seconds, tenants=tenants, steps=20_000)
    whole = sum(took.values())
    # A queue's step is never divided, so the queue may have more than its part.
    assert took["queue"] >= 0.98 * whole * tenants / (tenants + owners)
    if seconds > 1:
        assert took["queue"] <= 1.05 * whole * tenants / (tenants + owners)
        parts = [took[owner] for owner in range(owners)]
        assert max(parts) <= min(parts) + seconds


def test_does_not_make_up_for_queue_work_before_a_batch():
    batches = SeparateBatches(1)
    batches.queue_took(1000.0)
    batches.add("ada", "a")
    took = played(batches, seconds=1.0, tenants=1, steps=100)
    assert took == {"queue": 50.0, "a": 50.0}


def test_runs_batch_whenever_alone_and_queue_whenever_without_batch():
    batches = SeparateBatches(2)
    assert not batches.is_due(queue_idle=True)
    batches.add("ada", "a")
    for _ in range(3):
        assert batches.is_due(queue_idle=True)
        batches.batch_took(1.0, queue_tenants=0)
    batches.queue_took(1.0)
    assert batches.is_due(queue_idle=False)


def test_removes_some_of_those_that_wait():
    batches = SeparateBatches(1)
    for owner, name in (("ada", "a1"), ("ada", "a2"), ("bob", "b1"), ("ada", "a3")):
        batches.add(owner, name)
    assert batches.remove_waiting(lambda name: name in {"a1", "a2", "b1"}) == ["a2", "b1"]
    assert batches.next() == "a1"
    batches.remove("a1")
    assert batches.next() == "a3"
    assert batches.remove_waiting(lambda name: True) == []


def test_removes_all_including_those_that_wait():
    batches = SeparateBatches(1)
    for name in ("a1", "a2"):
        batches.add("ada", name)
    assert batches.drain() == ["a1", "a2"]
    assert not batches
    batches.add("ada", "a3")
    assert batches.next() == "a3"
