"""Four tenants who train on one base model at the same time, against one with the service to itself."""

from __future__ import annotations

import statistics
import threading
import time
from itertools import pairwise
from typing import Any

import tinkergym as tg
from benchmarks.common import Figure, Service, paired_ratio, service, write_result
from benchmarks.step_work import GROUPS, model_directory
from benchmarks.versus_trl import train

TENANTS = 4
STEPS = 12
ROUNDS = 4
ASKED = 2.5


def measure() -> list[Figure]:
    """Each tenant has its own key, job and adapter; the time counts until the last one's job has ended.

    Four are compared with the single one right before and the one right after them.
    """
    listed = 'preload=["shared"]'  # others than the owner name listed models only
    with model_directory() as folder, service(None, f'models.shared="{folder}"', listed) as running:
        model = "shared"
        keys = [running.key_of(f"tenant-{number}") for number in range(TENANTS)]
        _train_together(running, keys[:1], model, steps=2)  # the pool is warm, as in steady state
        alone = [_train_together(running, keys[:1], model, steps=STEPS)]
        together = []
        for _ in range(ROUNDS):
            together.append(_train_together(running, keys, model, steps=STEPS))
            alone.append(_train_together(running, keys[:1], model, steps=STEPS))
    seconds = [run["seconds"] for run in together]
    alone_seconds = [(one["seconds"] + other["seconds"]) / 2 for one, other in pairwise(alone)]
    ratio = paired_ratio(seconds, alone_seconds)
    figure = Figure(
        what=f"{TENANTS} tenants at once on one base model against one, {STEPS} steps each",
        asked=f"<= {ASKED} x the time",
        measured=f"{ratio:.2f} x ({statistics.median(seconds):.1f} against "
        f"{statistics.median(alone_seconds):.1f} s)",
        reached=ratio <= ASKED,
        margin=ASKED / ratio,
    )
    return write_result("tenants", [figure], {"alone": alone, "together": together})


def _train_together(running: Service, keys: list[str], model: str, *, steps: int) -> dict[str, Any]:
    clients = [tg.Client(running.url, key) for key in keys]
    jobs: dict[int, dict[str, Any]] = {}

    def play(number: int) -> None:
        jobs[number] = train(clients[number], model, tg.LoRA(rank=8), steps=steps, groups=GROUPS, seed=number)

    threads = [threading.Thread(target=play, args=(number,)) for number in range(len(keys))]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    for client in clients:
        client.close()
    if len(jobs) < len(keys):
        raise RuntimeError("a tenant's job failed, see above")
    return {"seconds": seconds, "jobs": [jobs[number] for number in sorted(jobs)]}
