from __future__ import annotations

import asyncio

import pytest

from backend.fairness.fair_places import FairPlaces
from backend.fairness.turns import Turns


async def waiting(turns: Turns, owner: str) -> asyncio.Task[int]:
    task = asyncio.create_task(turns.enter(owner))
    await asyncio.sleep(0)
    return task


def test_passes_a_place_on_to_the_next_owner():
    async def play():
        turns = Turns(FairPlaces(1, most_of_one=1))
        first = await turns.enter("ada")
        second, other = await waiting(turns, "ada"), await waiting(turns, "bob")
        assert turns.is_full("eve")
        turns.leave(first)
        (chosen,), _ = await asyncio.wait({second, other}, return_when=asyncio.FIRST_COMPLETED)
        turns.leave(await chosen)
        await asyncio.wait({second, other})
        turns.leave(await (second if chosen is other else other))
        assert not turns.is_full("eve")

    asyncio.run(play())


@pytest.mark.parametrize("admitted", [False, True])
def test_keeps_no_place_for_a_cancelled_request(admitted):
    async def play():
        turns = Turns(FairPlaces(1, most_of_one=1))
        first = await turns.enter("ada")
        gives_up, other = await waiting(turns, "bob"), await waiting(turns, "eve")
        if admitted:
            turns.leave(first)  # Its turn has come, but it has not noticed yet.
        gives_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gives_up
        if not admitted:
            turns.leave(first)
        turns.leave(await other)
        assert not turns.is_full("bob")

    asyncio.run(play())
