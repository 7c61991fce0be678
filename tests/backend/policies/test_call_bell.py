import math
import threading

from backend.policies.call_bell import CallBell


def test_wakes_waiting_callers_by_a_ring_and_misses_no_ring():
    bell = CallBell()
    before = bell.rung
    bell.ring()
    bell.wait(before, 60.0)  # returns at once: it has rung since
    waiting = threading.Thread(target=bell.wait, args=(bell.rung, 60.0))
    waiting.start()
    bell.ring()
    waiting.join(120.0)
    assert not waiting.is_alive()


def test_waits_for_a_call_until_it_or_a_later_ends():
    bell = CallBell()
    before = bell.rung
    waiting = threading.Thread(target=bell.wait_until_done, args=("p", 2, 60.0))
    waiting.start()
    bell.wait(before, 60.0)  # whoever waits for a call rings, so that its loop looks
    bell.done("other", 9)
    bell.done("p", 3)
    waiting.join(120.0)
    assert not waiting.is_alive()
    bell.wait_until_done("p", 1, 60.0)


def test_forgets_what_a_forgotten_policy_did():
    bell = CallBell()
    bell.done("p", 3)
    bell.forget("p")
    bell.forget("p")
    bell.wait_until_done("p", 1, 0.0)  # gives up at once; a loop elsewhere may do it


def test_waits_no_longer_for_a_policy_that_is_forgotten():
    bell = CallBell()
    before = bell.rung
    waiting = threading.Thread(target=bell.wait_until_done, args=("p", 1, 60.0))
    waiting.start()
    bell.wait(before, 60.0)
    bell.forget("other")
    bell.forget("p")
    waiting.join(120.0)
    assert not waiting.is_alive()


def test_counts_sampling_of_a_policy_trained_here_as_use():
    now = 10.0
    bell = CallBell(lambda: now)
    bell.done("p", 0)
    for policy in ("p", "other"):
        bell.sampled(policy)
    assert (bell.last_sampled("p"), bell.last_sampled("other")) == (10.0, -math.inf)
    bell.forget("p")
    assert bell.last_sampled("p") == -math.inf
