"""Which idle models end for one that waits."""

from __future__ import annotations

from dataclasses import replace

from backend.planning.idle_ends import ends_for
from backend.planning.machines import Part, Placed
from tests.backend.planning.shapes import GB, machine, wish


def test_keeps_no_idle_model_for_gpus_of_others():
    shared = replace(machine("a", 1, 24), gpus_of_others=1)
    pool = Part(kind="pool", number=0, node_id="a")
    held = Placed(name="idle", model="idle", parts=(pool,), claims=(("a", 0, 20 * GB),))
    waiting = [wish("0.5B", "two", gpus=2), wish("0.5B", "one", gpus=1)]
    assert ends_for([shared], waiting, [held], ["idle"]) == ["idle"]
