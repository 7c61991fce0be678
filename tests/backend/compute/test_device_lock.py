from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

from backend.compute.device_lock import DeviceLock, KeptCore, compute_alone

COUNT = """
import os
import torch
from backend.compute.device_lock import DeviceLock, computing_with

threads = lambda: len(os.listdir("/proc/self/task"))
torch.set_num_threads(2)
before = threads()
with computing_with(1):
    left = torch.ones(512, 512)
    torch.softmax(left @ left, dim=-1)
    torch.bmm(torch.ones(64, 32, 32), torch.ones(64, 32, 32))
print(threads() - before)
before = threads()
with DeviceLock(cpu_threads=2):
    torch.softmax(left @ left, dim=-1)
    within = threads()
print(within - before, threads() - before)
"""


needs_openmp = pytest.mark.skipif(
    not torch.backends.openmp.is_available(), reason="torch computes without OpenMP here"
)


def in_a_thread(function):
    """Call it in a new thread, as numbers of threads belong to one, and return what it returns."""
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@needs_openmp
def test_computes_alone_with_the_threads_that_were_asked_for():
    lock = DeviceLock(cpu_threads=2)

    def numbers():
        compute_alone()
        found = [torch.get_num_threads()]
        for _ in range(2):
            with lock:
                found.append(torch.get_num_threads())
            found.append(torch.get_num_threads())
        return found

    assert in_a_thread(numbers) == [1, 2, 1, 2, 1]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts threads in /proc")
def test_keeps_one_thread_in_libraries_and_ends_helpers_at_release():
    found = subprocess.run([sys.executable, "-c", COUNT], check=True, capture_output=True, text=True)
    alone, made, left = map(int, found.stdout.split())
    assert alone == 0
    if not made:
        pytest.skip("torch computes without OpenMP here")
    assert left == 0


def test_leaves_threads_alone_on_other_devices():
    def numbers():
        before = torch.get_num_threads()
        with DeviceLock():
            return before, torch.get_num_threads()

    before, within = in_a_thread(numbers)
    assert before == within


def test_keeps_core_for_its_holder_until_somebody_wants_all():
    lock = DeviceLock(cpu_threads=2)
    kept = KeptCore(lock)
    with kept:
        pass
    assert lock.take_free() == 1
    lock.give(1)
    entered = threading.Event()

    def want_all():
        with lock:
            entered.set()

    thread = threading.Thread(target=want_all)
    with kept:
        thread.start()
        while not lock.wholly_awaited:
            threading.Event().wait(0.001)
        assert not entered.is_set()
    assert entered.wait(60.0)
    thread.join()
    assert lock.take_free() == 2


def test_hands_over_shared_core_after_as_long_as_holder_waited():
    now = [0.0]
    lock = DeviceLock(cpu_threads=2)
    kept = KeptCore(lock, clock=lambda: now[0])
    kept.shares = True
    entered, leaves = threading.Event(), threading.Event()

    def want_one():
        with lock.cores(1):
            entered.set()
            assert leaves.wait(120)

    def wait_until_awaited():
        while not lock.awaited:
            threading.Event().wait(0.001)

    def waits_seven_seconds():
        wait_until_awaited()
        now[0] += 7.0
        lock.give(1)

    lock.take(2)
    giver = threading.Thread(target=waits_seven_seconds)
    giver.start()
    with kept:  # the other core is taken for the whole test
        giver.join()
    other = threading.Thread(target=want_one)
    other.start()
    wait_until_awaited()
    now[0] += 6.9
    with kept:
        pass
    assert lock.awaited == 1
    now[0] += 0.1
    with kept:
        pass
    assert entered.wait(120)
    leaves.set()
    other.join()


@needs_openmp
def test_computes_with_the_free_cores_or_waits_for_all():
    lock = DeviceLock(cpu_threads=8)

    def numbers():
        compute_alone()
        kept, found = KeptCore(lock), []
        with lock.cores(3), kept.with_others(wait=False):
            found.append(torch.get_num_threads())
        for wait in (False, True):
            with kept.with_others(wait=wait):
                found.append(torch.get_num_threads())
        return [*found, torch.get_num_threads()]

    assert in_a_thread(numbers) == [5, 8, 8, 1]
    assert lock.take_free() == 8
