import asyncio
import threading

import pytest

from tinkergym.user_code.awaiting import settled


def test_returns_value_itself():
    assert settled(3.0) == 3.0


def test_waits_for_a_coroutine():
    async def score():
        await asyncio.sleep(0)
        return 0.5

    assert settled(score()) == 0.5


def test_raises_its_error_here():
    async def score():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        settled(score())


def test_runs_all_on_one_loop_whichever_thread_waits():
    loops = []

    async def score():
        loops.append(asyncio.get_running_loop())

    threads = [threading.Thread(target=lambda: settled(score())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    settled(score())
    assert len(loops) == 4
    assert len(set(map(id, loops))) == 1


def test_works_where_a_loop_runs_already():
    async def score():
        return 1.0

    async def notebook():
        return settled(score())

    assert asyncio.run(notebook()) == 1.0
