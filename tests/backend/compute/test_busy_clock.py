from __future__ import annotations

import time

from backend.compute.busy_clock import BusyClock


def test_counts_simultaneous_work_once_and_waiting_not_at_all():
    clock = BusyClock()
    began = time.perf_counter()
    with clock.working(), clock.working(), clock.working():
        within = clock.seconds
    assert 0 <= within <= clock.seconds <= time.perf_counter() - began
    after = clock.seconds
    assert clock.seconds == after


def test_runs_while_something_that_was_counted_is_under_way():
    clock = BusyClock()
    clock.count(2)
    clock.count(1)
    within = clock.seconds
    clock.count(0)
    assert clock.seconds >= within
    after = clock.seconds
    assert clock.seconds == after
