import asyncio
import threading
from contextlib import closing
from functools import partial

import anyio
import pytest

from backend.gateway.fair_threads import FairThreads
from tinkergym.errors import ServiceUnavailableError


def played(play, threads):
    with closing(threads):
        return asyncio.run(play(threads))


def test_waits_once_for_a_tenant_with_many_requests():
    order = []
    first_runs, go_on = threading.Event(), threading.Event()

    def noted(name):
        order.append(name)
        if name == "flood 0":
            first_runs.set()
            assert go_on.wait(120)

    async def play(threads):
        flood = [asyncio.create_task(threads.run("bob", lambda n=n: noted(f"flood {n}"))) for n in range(20)]
        await asyncio.to_thread(first_runs.wait, 120)
        single = asyncio.create_task(threads.run("ada", lambda: noted("single")))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(single, *flood)

    played(play, FairThreads(1, seconds=120))
    assert order.index("single") <= 2
    assert len(order) == 21


def test_gives_all_tenants_together_no_more_threads_than_exist():
    running, go_on = threading.Semaphore(0), threading.Event()

    def hangs():
        running.release()
        assert go_on.wait(120)

    async def play(threads):
        calls = [asyncio.create_task(threads.run(tenant, hangs)) for tenant in ("ada", "bob", "eve", "fay")]
        for _ in range(2):
            assert await asyncio.to_thread(running.acquire, timeout=120)
        more = running.acquire(blocking=False)
        go_on.set()
        await asyncio.gather(*calls)
        return more

    assert not played(play, FairThreads(2, of_tenant=2, seconds=120))
    assert [running.acquire(blocking=False) for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize("abandon", [True, False])
def test_leaves_or_awaits_the_thread_when_a_caller_gives_up(abandon):
    began, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def hangs():
        began.set()
        assert go_on.wait(120)
        ended.set()

    async def release():
        for _ in range(50):  # turns of the loop, in which one that does not wait is gone
            await asyncio.sleep(0)
        go_on.set()

    async def play(threads):
        async with anyio.create_task_group() as callers:
            callers.start_soon(partial(threads.run, "ada", hangs, abandon_on_cancel=abandon))
            await asyncio.to_thread(began.wait, 120)
            callers.cancel_scope.cancel()
            releasing = None if abandon else asyncio.create_task(release())
        waited = ended.is_set()
        go_on.set()
        if releasing is not None:
            await releasing
        return waited

    assert played(play, FairThreads(1, seconds=120)) is not abandon
    assert ended.wait(120)


def test_holds_only_its_tenants_place_by_overdue_thread():
    go_on = threading.Event()

    async def patiently(threads, tenant, call):
        while True:
            try:
                return await threads.run(tenant, call)
            except ServiceUnavailableError:  # On a busy machine any call can be overdue.
                pass

    async def play(threads):
        with pytest.raises(ServiceUnavailableError):
            await threads.run("bob", lambda: go_on.wait(120))
        waiting = asyncio.create_task(patiently(threads, "bob", lambda: "bob's second"))
        others = await patiently(threads, "ada", lambda: "ada's")
        waited = not waiting.done()
        go_on.set()
        return others, waited, await waiting

    assert played(play, FairThreads(1, seconds=0.05)) == ("ada's", True, "bob's second")


def test_frees_places_of_a_call_that_raises():
    async def play(threads):
        with pytest.raises(ZeroDivisionError):
            await threads.run("ada", lambda: 1 / 0)
        return await threads.run("ada", lambda: "next")

    assert played(play, FairThreads(1, seconds=120)) == "next"
