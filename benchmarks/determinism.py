"""One seed, five steps: twice, and with each process of the service killed at step 3; bitwise equal."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping

import psutil

import tinkergym as tg
from benchmarks.common import Figure, Service, service, write_result

STEPS = 5
KILL_AT = 3

# How to recognise each process by its command line; Ray names an actor's process after its class.
PARTS: dict[str, Callable[[list[str]], bool]] = {
    "gateway": lambda words: "backend.gateway" in words,
    "scheduler host": lambda words: "backend.scheduler.scheduler_host" in words,
    "pool worker": lambda words: bool(words) and words[0].startswith("ray::PoolProcess"),
    "environment worker": lambda words: "backend.workers.env_worker_process" in words,
}


def measure() -> list[Figure]:
    """Run the job undisturbed twice and once per killed part, each in a fresh service."""
    hashes = {f"undisturbed, run {run}": _final_hash(None) for run in (1, 2)}
    hashes |= {f"{part} killed at step {KILL_AT}": _final_hash(part) for part in PARTS}
    equal = len(set(hashes.values())) == 1
    figure = Figure(
        what=f"a seed, {STEPS} steps: twice, and killed at step {KILL_AT} ({', '.join(PARTS)})",
        asked="bit-equal final adapter hash",
        measured=f"{len(hashes)} runs, {len(set(hashes.values()))} distinct hash(es)",
        reached=equal,
    )
    return write_result("determinism", [figure], {"sha256": hashes})


def _final_hash(part: str | None) -> str:
    with service() as running:
        client = tg.Client(running.url, running.api_key, patience_seconds=60)
        job = client.train(
            "board/TicTacToeVs-v0",
            steps=STEPS,
            seed=7,
            deterministic=True,
            algorithm=tg.GRPO(group_size=8, groups_per_step=8, learning_rate=3e-3),
            checkpoint_every=2,
        )
        killed = part is None
        for event in job.events():
            if not killed and event.body.type == "step" and event.body.step == KILL_AT:
                kill(running, str(part))
                killed = True
        job.wait()
        final = job.checkpoints()[-1]
        assert final.step == STEPS, final
        client.close()
        return final.sha256


def kill(running: Service, part: str) -> None:
    """Kill every process of a service that matches this entry of `PARTS`, with -9.

    Raises:
        RuntimeError: There is none at the moment.
    """
    if not kill_if_there(running, part):
        raise RuntimeError(f"no process of the service looks like its {part}")


def kill_if_there(running: Service, part: str) -> bool:
    """Kill like `kill`; return whether there was one."""
    victims = processes_by_kind(running, PARTS).get(part, [])
    for process in victims:
        os.kill(process.pid, signal.SIGKILL)
    return bool(victims)


def processes_by_kind(
    running: Service, kinds: Mapping[str, Callable[[list[str]], bool]]
) -> dict[str, list[psutil.Process]]:
    """Return the service's processes of each kind that has some, told by their command lines."""
    found: dict[str, list[psutil.Process]] = {}
    for process in psutil.Process(running.process.pid).children(recursive=True):
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        for kind, matches in kinds.items():
            if matches(words):
                found.setdefault(kind, []).append(process)
    return found
