import asyncio
import threading

from backend.gateway.turns import Turns


def test_a_tenant_with_many_requests_is_waited_for_once():
    order = []
    first_runs, go_on = threading.Event(), threading.Event()

    def noted(name):
        order.append(name)
        if name == "flood 0":
            first_runs.set()
            assert go_on.wait(20)

    async def play():
        turns = Turns(1)
        flood = [asyncio.create_task(turns.run("bob", lambda n=n: noted(f"flood {n}"))) for n in range(20)]
        await asyncio.to_thread(first_runs.wait, 20)
        single = asyncio.create_task(turns.run("ada", lambda: noted("single")))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(single, *flood)

    asyncio.run(play())
    assert order.index("single") <= 2
    assert len(order) == 21


def test_all_tenants_together_have_no_more_threads_than_there_are():
    running, go_on = threading.Semaphore(0), threading.Event()

    def hangs():
        running.release()
        assert go_on.wait(20)

    async def play():
        turns = Turns(2, of_tenant=2)
        calls = [asyncio.create_task(turns.run(tenant, hangs)) for tenant in ("ada", "bob", "eve", "fay")]
        for _ in range(2):
            assert await asyncio.to_thread(running.acquire, timeout=20)
        more = running.acquire(blocking=False)
        go_on.set()
        await asyncio.gather(*calls)
        return more

    assert not asyncio.run(play())
    assert [running.acquire(blocking=False) for _ in range(3)] == [True, True, False]
