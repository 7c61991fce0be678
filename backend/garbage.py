"""What a process that lives long does about Python's garbage collector."""

from __future__ import annotations

import gc


def spare_the_collector() -> None:
    """Keep Python's garbage collector from looking through what was made at the start, over and over.

    A full collection took 0.4 s in a pool, every ten steps of a game, and no other thread gets on meanwhile;
    in the gateway collections were a twelfth of what it computes.
    """
    gc.collect()  # what is dead already would stay for good
    gc.freeze()
