from __future__ import annotations

import threading
from collections.abc import Sequence

from backend.compute.device_lock import DeviceLock
from backend.engines.forward_shares import ForwardShares
from tests.backend.engines.transformers.answers import ask, complete, prompt
from tinkergym.schema.sampling import Completion, SampleFailure


def test_bounds_every_share_by_the_least_wanted_one():
    shares = ForwardShares(least=16, most=256)
    shares.note(["ada", "bob"], now=0.0)
    assert shares.divided({"ada": 40, "bob": 5000}) == {"ada": 40, "bob": 40}
    assert shares.divided({"ada": 1, "bob": 5000}) == {"ada": 16, "bob": 16}
    assert shares.divided({"ada": 900, "bob": 5000}) == {"ada": 128, "bob": 128}


def test_keeps_a_tenants_forward_short_while_another_is_expected():
    shares = ForwardShares(least=16, most=256)
    shares.note(["ada", "bob"], now=0.0)
    shares.note(["bob"], now=1.0)
    assert shares.divided({"bob": 5000}) == {"bob": 128}
    assert shares.divided({"bob": 5000}, {"bob"}) == {"bob": 64}
    shares.note(["bob"], now=60.0)
    assert not shares.shared


def test_gives_queueing_tenant_half_unless_everybody_queues():
    shares = ForwardShares(least=16, most=256)
    shares.note(["ada", "bob"], now=0.0)
    wanted = {"ada": 64, "bob": 5000}
    assert shares.divided(wanted, {"bob"}) == {"ada": 64, "bob": 32}
    assert shares.divided(wanted, {"ada", "bob"}) == {"ada": 64, "bob": 64}
    assert shares.divided({"ada": 20, "bob": 5000}, {"bob"}) == {"ada": 20, "bob": 16}
    assert shares.divided({"ada": 64}, {"bob"}) == {"ada": 64}


def test_halves_no_share_among_tenants_that_all_queued_lately():
    shares = ForwardShares(least=16, most=256)
    shares.note(["ada", "bob"], now=0.0, backlogged={"ada"})
    shares.note(["ada", "bob"], now=1.0, backlogged={"bob"})
    assert shares.divided({"bob": 5000}, {"bob"}) == {"bob": 128}
    shares.note(["ada", "bob"], now=5.5, backlogged={"bob"})
    assert shares.divided({"bob": 5000}, {"bob"}) == {"bob": 64}


def test_lets_forward_wait_for_a_tenant_without_queue():
    shares = ForwardShares(least=16, most=256)
    shares.note(["ada", "bob"], now=0.0)
    assert shares.can_wait({"bob"}, {"bob"})
    assert not shares.can_wait({"ada", "bob"}, {"bob"})
    assert not shares.can_wait({"bob"}, set())
    assert not shares.can_wait({"ada", "bob"}, {"ada", "bob"})


def test_keeps_nobody_waiting_behind_another_owners_whole_queue(start, directory):
    device = threading.Lock()
    engine = start(directory, max_slots=1, device_lock=device)
    order: list[str] = []
    done = threading.Event()

    def deliver(batch: Sequence[Completion | SampleFailure]) -> None:
        order.extend(answer.request_id for answer in batch)
        if len(order) == 21:
            done.set()

    with device:  # so that all of them wait
        engine.submit([ask(f"a{n}", prompt(4, n), session_id="ada/") for n in range(20)], deliver)
        engine.submit([ask("b", prompt(4, 30), session_id="bob/")], deliver)
    assert done.wait(60)
    assert order.index("b") <= 2
    assert [name for name in order if name != "b"] == [f"a{n}" for n in range(20)]


def test_samples_beside_learner_and_admits_who_wants_the_whole_device(start, directory):
    lock = DeviceLock(cpu_threads=2)
    engine = start(directory, device_lock=lock)
    with lock.cores(1):
        assert len(complete(engine, [ask("beside", prompt(5), max_tokens=4)])["beside"].token_ids) == 4
    found, done, done_within = [], threading.Event(), []

    def want_the_device():
        with lock:
            done_within.append(done.is_set())

    visitor = threading.Thread(target=want_the_device)

    def deliver(batch):
        found.extend(batch)
        if len(found) == 1:
            visitor.start()
            while not lock.wholly_awaited:
                threading.Event().wait(0.001)
        else:
            done.set()

    engine.submit([ask("short", prompt(4), max_tokens=2), ask("long", prompt(6), max_tokens=200)], deliver)
    assert done.wait(60)
    visitor.join()
    assert done_within == [False]
    assert [len(answer.token_ids) for answer in found] == [2, 200]
    with lock:  # who has nothing to do keeps nothing
        pass
