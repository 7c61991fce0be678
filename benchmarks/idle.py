"""Processor time of a service that has a model in memory and nothing to do, by kind of process."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil

import tinkergym as tg
from benchmarks.common import Figure, Service, service, write_result
from benchmarks.determinism import processes_by_kind
from benchmarks.mixed_kills import VICTIMS
from tinkergym.schema.sampling import SampleRequest

REST_SECONDS = 30.0
"""What a service has after its start for everything that a start leaves."""
SECONDS = 60.0
"""For how long it is measured."""
ASKED_PERCENT = 1.0
"""Of one core, by all processes together."""


def measure() -> list[Figure]:
    """Let a service sample once, wait, and add up what its processes compute within a minute."""
    with service() as running, tg.Client(running.url, running.api_key) as client:
        client.ask(SampleRequest(request_id="first", policy="nano", prompt_ids=[5], max_tokens=1))
        time.sleep(REST_SECONDS)
        before, began = _seconds(running), time.perf_counter()
        time.sleep(SECONDS)
        after, passed = _seconds(running), time.perf_counter() - began
    used: dict[str, float] = {}
    for (process, kind), seconds in after.items():
        share = 100 * (seconds - before.get((process, kind), 0.0)) / passed
        used[kind] = used.get(kind, 0.0) + share
    total = sum(used.values())
    most = sorted(used, key=used.__getitem__, reverse=True)[:3]
    figure = Figure(
        what=f"an idle service with a model in memory, {SECONDS:.0f} s",
        asked=f"<= {ASKED_PERCENT:.0f} % of a core",
        measured=f"{total:.1f} %: {', '.join(f'{kind} {used[kind]:.1f}' for kind in most)}, others "
        f"{total - sum(used[kind] for kind in most):.1f}",
        reached=total <= ASKED_PERCENT,
    )
    return write_result("idle", [figure], {"percent": used})


def _seconds(running: Service) -> dict[tuple[psutil.Process, str], float]:
    """Return the processor time so far of each of the service's processes, with its kind."""
    found: dict[tuple[psutil.Process, str], float] = {}
    named = {one.pid: kind for kind, every in processes_by_kind(running, VICTIMS).items() for one in every}
    root = psutil.Process(running.process.pid)
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            found[process, named.get(process.pid, "other processes")] = times.user + times.system
    return found
