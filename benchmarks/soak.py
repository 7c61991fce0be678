"""`make soak SECONDS=3600`: jobs under kills for as long as it is told; its results accumulate.

Half of the time the jobs of `mixed_kills` run on one machine, in the other half those of `soak_hosts` on
several hosts, where these can be made. The first round is undisturbed. In all others one process of each kind
after the other is killed with -9, and each job must end with the same hashes, all events and one end. A
result adds to those in `results/soak.json`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import pytest

import tinkergym as tg
from benchmarks import soak_hosts
from benchmarks.common import RESULTS, Figure, machine, service, write_result
from benchmarks.mixed_kills import VICTIMS, round_of, strike
from tests.backend.cluster.hosts_in_namespaces import missing

_FEWEST_KILLS, _FEWEST_OF_A_KIND = 60, 3


@dataclass(slots=True)
class Found:
    """What was killed, and which jobs did not end as undisturbed ones."""

    rounds: int = 0
    """Those with kills."""
    jobs: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    unequal: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def main() -> int:
    """Run for a time, add what happened to the results; the exit status counts the faults."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="kill for so long (default: an hour)")
    parser.add_argument("--only", choices=["machine", "hosts"], help="do not divide the time")
    asked = parser.parse_args()
    where = [asked.only] if asked.only else ["machine", "hosts"]
    if reason := missing():
        print(f"no hosts: {reason}")
        where = ["machine"]
    faults = 0
    for part in where:
        began, found = time.time(), Found()
        run = _on_one_machine if part == "machine" else soak_hosts.run
        try:
            run(asked.seconds / len(where), random.Random(), found)
        except pytest.skip.Exception as reason:
            print(f"no hosts: {reason}")
            continue
        _add(
            {"began": round(began), "where": part, "machine": machine()}
            | asdict(found)
            | {"kills": dict(found.kills)}
        )
        faults += len(found.wrong) + len(found.unequal)
    return faults


def _add(run: dict[str, Any]) -> None:
    file = RESULTS / "soak.json"
    before: list[dict[str, Any]] = json.loads(file.read_text())["details"]["runs"] if file.exists() else []
    figure = _figure([*before, run])
    write_result("soak", [figure], {"runs": [*before, run]}, command="make soak")
    print(f"{figure.what}: {figure.measured}\n{file}", flush=True)


def _on_one_machine(seconds: float, drawn: random.Random, found: Found) -> None:
    with service() as running, tg.Client(running.url, running.api_key, patience_seconds=300) as client:
        clean = round_of(running, client, lambda: None, found.wrong)
        ends_at = time.monotonic() + seconds

        def ended() -> bool:
            return time.monotonic() > ends_at

        while not ended():
            hashes = round_of(
                running, client, lambda: strike(running, drawn, found.kills, ended), found.wrong
            )
            found.rounds, found.jobs = found.rounds + 1, found.jobs + len(clean)
            found.unequal += [name for name in clean if hashes[name] != clean[name]]
            print(f"round {found.rounds}: {found}", flush=True)


def _figure(runs: list[dict[str, Any]]) -> Figure:
    """Return the row of all runs together."""
    kills = sum((Counter(run["kills"]) for run in runs), Counter[str]())
    faults = sum(len(run["wrong"]) for run in runs)
    unequal = sum(len(run["unequal"]) for run in runs)
    # Several hosts need root: without it, their kinds of processes are not part of the goal.
    on_hosts = any(run.get("where") == "hosts" for run in runs)
    least = min(kills[kind] for kind in (*VICTIMS, *(soak_hosts.KINDS if on_hosts else ())))
    return Figure(
        what=f"a mix of jobs under kills of every kind of process, {len(runs)} runs",
        asked=f">= {_FEWEST_KILLS} kills, {_FEWEST_OF_A_KIND} of each kind; 0 lost, 0 doubled, same hashes",
        measured=f"{kills.total()} kills, each kind >= {least} times; {unequal} of "
        f"{sum(run['jobs'] for run in runs)} jobs unequal, {faults} faults",
        reached=not faults and not unequal and kills.total() >= _FEWEST_KILLS and least >= _FEWEST_OF_A_KIND,
    )


if __name__ == "__main__":
    sys.exit(main())
