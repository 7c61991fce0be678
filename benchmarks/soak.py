"""`make soak SECONDS=3600`: the jobs of `mixed_kills` for as long as it is told; its results accumulate.

The first round is undisturbed. In all others one process of each kind after the other is killed with -9, and
each job must end with the same hashes, all events and one end. A result adds to those in `results/soak.json`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from typing import Any

import tinkergym as tg
from benchmarks.common import RESULTS, Figure, machine, service, write_result
from benchmarks.mixed_kills import VICTIMS, round_of, strike

_FEWEST_KILLS, _FEWEST_OF_A_KIND = 60, 3


def main() -> int:
    """Run for a time, add what happened to the results; the exit status says whether anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="kill for so long (default: an hour)")
    run = _run(parser.parse_args().seconds)
    file = RESULTS / "soak.json"
    before: list[dict[str, Any]] = json.loads(file.read_text())["details"]["runs"] if file.exists() else []
    figure = _figure([*before, run])
    write_result("soak", [figure], {"runs": [*before, run]}, command="make soak")
    print(f"{figure.what}: {figure.measured}\n{file}")
    return len(run["wrong"]) + len(run["unequal"])


def _run(seconds: float) -> dict[str, Any]:
    """Kill for so long; return what was killed, and which jobs did not end as undisturbed ones."""
    kills, wrong, unequal, rounds = Counter[str](), list[str](), list[str](), 0
    drawn, began = random.Random(), time.time()
    with service() as running, tg.Client(running.url, running.api_key, patience_seconds=300) as client:
        clean = round_of(running, client, lambda: None, wrong)
        ends_at = time.monotonic() + seconds

        def ended() -> bool:
            return time.monotonic() > ends_at

        while not ended():
            found = round_of(running, client, lambda: strike(running, drawn, kills, ended), wrong)
            rounds += 1
            unequal += [name for name in clean if found[name] != clean[name]]
            print(f"round {rounds}: {kills.total()} kills, unequal: {unequal}, wrong: {wrong}", flush=True)
    return {
        "began": round(began),
        "machine": machine(),
        "rounds": rounds,
        "jobs": rounds * len(clean),
        "kills": dict(kills),
        "unequal": unequal,
        "wrong": wrong,
    }


def _figure(runs: list[dict[str, Any]]) -> Figure:
    """Return the row of all runs together."""
    kills = sum((Counter(run["kills"]) for run in runs), Counter[str]())
    faults = sum(len(run["wrong"]) for run in runs)
    unequal = sum(len(run["unequal"]) for run in runs)
    least = min((kills[kind] for kind in VICTIMS), default=0)
    return Figure(
        what=f"a mix of jobs under kills of every kind of process, {len(runs)} runs",
        asked=f">= {_FEWEST_KILLS} kills, {_FEWEST_OF_A_KIND} of each kind; 0 lost, 0 doubled, same hashes",
        measured=f"{kills.total()} kills, each kind >= {least} times; {unequal} of "
        f"{sum(run['jobs'] for run in runs)} jobs unequal, {faults} faults",
        reached=not faults and not unequal and kills.total() >= _FEWEST_KILLS and least >= _FEWEST_OF_A_KIND,
    )


if __name__ == "__main__":
    sys.exit(main())
