from __future__ import annotations

import threading

from backend.workers.heartbeat import Heartbeat


def test_goes_on_beating_when_the_clock_is_set_back():
    now, beats, third = [1_000_000.0], [], threading.Event()

    def show_life(at: float) -> None:
        beats.append(at)
        now[0] -= 3600.0
        if len(beats) == 3:
            third.set()

    heartbeat = Heartbeat(
        None,
        dict,
        show_life=show_life,
        lease_seconds=1.0,
        heartbeat_seconds=0.02,
        clock=lambda: now[0],
    )
    heartbeat.start()
    came = third.wait(120.0)
    heartbeat.close()
    assert came, beats
