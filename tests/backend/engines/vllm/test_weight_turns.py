import asyncio

from backend.engines.vllm.weight_turns import Rooms


def played(scene):
    entered = []

    async def enter(room):
        entered.append(room)

    async def run():
        await scene(Rooms(enter, room=0))
        return entered

    return asyncio.run(asyncio.wait_for(run(), 120.0))


def test_admits_many_to_one_room_and_waits_before_the_next():
    async def scene(rooms):
        together, seen = asyncio.Barrier(2), []

        async def inside():
            async with rooms.hold(0):
                await together.wait()  # both are inside at once
                seen.append(0)

        async def next_door():
            async with rooms.hold(1):
                seen.append(1)

        await asyncio.gather(inside(), inside(), next_door())
        assert seen == [0, 0, 1]

    assert played(scene) == [1]


def test_shares_the_room_with_nobody_when_alone():
    async def scene(rooms):
        async with rooms.hold(0, alone=True):
            with rooms.join() as room:
                assert room is None
        with rooms.join() as room:
            assert room == 0

    assert played(scene) == []


def test_holds_nobody_up_when_giving_up():
    async def scene(rooms):
        async with rooms.hold(0):
            waiting = asyncio.create_task(rooms.hold(1).__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            with rooms.join() as room:
                assert room == 0

    assert played(scene) == []


def test_passes_turn_on_when_it_comes_while_giving_up():
    async def scene(rooms):
        async with rooms.hold(0, alone=True):
            gone = asyncio.create_task(rooms.hold(0, alone=True).__aenter__())
            following = asyncio.create_task(rooms.hold(0, alone=True).__aenter__())
            await asyncio.sleep(0)
            gone.cancel()  # it learns of this after the one inside has left
        await following

    assert played(scene) == []
