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
