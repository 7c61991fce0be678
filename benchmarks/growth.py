"""Memory of a service that trains rounds of mixed jobs for 20 minutes, by kind of process."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import psutil

import tinkergym as tg
from benchmarks.common import Figure, Service, service, write_result
from benchmarks.determinism import processes_by_kind
from benchmarks.mixed_kills import VICTIMS, round_of

SECONDS = float(os.environ.get("TINKERGYM_BENCHMARK_GROWTH_SECONDS", "1200"))
WARM_ROUNDS = 2
"""Models are loaded and caches filled in these."""
ASKED = 1.1


def measure() -> list[Figure]:
    """Run the jobs of `mixed_kills` undisturbed, in rounds; compare the last one with the first warm one."""
    rounds: list[dict[str, float]] = []
    wrong: list[str] = []
    with service() as running, tg.Client(running.url, running.api_key) as client:
        began = time.monotonic()
        while time.monotonic() - began < SECONDS or len(rounds) <= WARM_ROUNDS:
            round_of(running, client, lambda: None, wrong)
            rounds.append({"minute": (time.monotonic() - began) / 60, **_megabytes(running)})
            print(rounds[-1], wrong, flush=True)
    warm, last = rounds[WARM_ROUNDS - 1], rounds[-1]
    growth = {kind: last.get(kind, 0.0) / warm[kind] for kind in warm if kind in VICTIMS}
    largest = max(growth, key=growth.__getitem__)
    figure = Figure(
        what=f"memory of a service after {len(rounds)} rounds of 7 kinds of jobs ({last['minute']:.0f} min) "
        f"against after {WARM_ROUNDS}",
        asked=f"<= {ASKED} x, of each kind of process",
        measured=f"most: {largest} {growth[largest]:.2f} x; all together {last['all']:.0f} MB; "
        f"{len(wrong)} faults",
        reached=max(growth.values()) <= ASKED and not wrong,
    )
    return write_result("growth", [figure], {"rounds": rounds, "wrong": wrong})


def _megabytes(running: Service) -> dict[str, float]:
    """Return the resident memory of the largest process of each kind, and of all these together.

    Not the sum of a kind: how many workers play is not growth.
    """
    found = {"all": 0.0}
    for kind, processes in processes_by_kind(running, VICTIMS).items():
        for process in processes:
            with suppress(psutil.Error):
                used = process.memory_info().rss / 1e6
                found["all"] += used
                found[kind] = max(found.get(kind, 0.0), used)
    return found
