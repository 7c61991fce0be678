from __future__ import annotations

import threading

from backend.scheduler.ticking import Ticking

PATIENCE_SECONDS = 120.0


class Claim:
    """A claim that the test gives and takes."""

    def __init__(self) -> None:
        self.mine, self.denied = False, threading.Event()

    def held(self) -> bool:
        mine = self.mine
        if not mine:
            self.denied.set()
        return mine


class Ticks:
    def __init__(self, wake) -> None:
        self.wake, self.ticked = wake, threading.Event()

    def due(self) -> bool:
        return True

    def tick(self) -> None:
        self.ticked.set()


def test_stands_by_and_begins_anew_with_its_claim():
    made: list[Ticks] = []
    claim, began = Claim(), threading.Semaphore(0)

    def make(wake) -> Ticks:
        made.append(Ticks(wake))
        began.release()
        return made[-1]

    ticking = Ticking(make, claim)
    try:
        assert claim.denied.wait(PATIENCE_SECONDS)
        assert made == []
        claim.mine = True
        assert began.acquire(timeout=PATIENCE_SECONDS)
        assert made[0].ticked.wait(PATIENCE_SECONDS)
        claim.denied.clear()
        claim.mine = False
        assert claim.denied.wait(PATIENCE_SECONDS)
        claim.mine = True
        assert began.acquire(timeout=PATIENCE_SECONDS)
    finally:
        ticking.stop()
    assert len(made) == 2
