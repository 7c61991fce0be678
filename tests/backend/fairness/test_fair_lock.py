from __future__ import annotations

import threading

import pytest

from backend.fairness.fair_lock import FairLock


def test_lets_waiting_threads_go_before_one_that_returns():
    lock, order, began = FairLock(), [], threading.Event()

    def wait_for_it() -> None:
        began.set()
        with lock:
            order.append("waiting")

    with lock:
        thread = threading.Thread(target=wait_for_it)
        thread.start()
        assert began.wait(60.0)
        while not lock.awaited:
            threading.Event().wait(0.001)
    with lock:
        order.append("again")
    thread.join()
    assert order == ["waiting", "again"]


def test_holds_one_thread_at_a_time():
    lock, inside, most = FairLock(), [0], []

    def work() -> None:
        for _ in range(200):
            with lock:
                inside[0] += 1
                most.append(inside[0])
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 800


def test_gives_lock_back_after_an_error_inside():
    lock = FairLock()
    with pytest.raises(ZeroDivisionError), lock:
        raise ZeroDivisionError
    with lock:
        assert lock.awaited == 0


def test_gives_places_one_by_one_and_never_passes_full_request():
    lock, order = FairLock(places=2), []
    lock.take(1)
    lock.take(1)
    lock.give(1)

    def want(places, name):
        lock.take(places)
        order.append(name)
        lock.give(places)

    whole = threading.Thread(target=want, args=(2, "whole"))
    whole.start()
    while not lock.wholly_awaited:
        threading.Event().wait(0.001)
    part = threading.Thread(target=want, args=(1, "part"))
    part.start()
    while lock.awaited < 2:
        threading.Event().wait(0.001)
    assert order == []
    assert lock.take_free() == 1  # nobody could have had it
    lock.give(1)
    lock.give(1)
    whole.join()
    part.join()
    assert order == ["whole", "part"]
    assert lock.take_free() == 2
