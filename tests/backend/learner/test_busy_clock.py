from __future__ import annotations

import time

from backend.learner.busy_clock import BusyClock


def test_work_of_several_at_a_time_counts_once_and_waiting_not_at_all():
    clock = BusyClock()
    began = time.perf_counter()
    with clock.working(), clock.working(), clock.working():
        within = clock.seconds
    assert 0 <= within <= clock.seconds <= time.perf_counter() - began
    after = clock.seconds
    assert clock.seconds == after
