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
"""Then what a start leaves to do is done."""
SECONDS = 60.0
ASKED = 1.0


def measure() -> list[Figure]:
    """Let a service sample once, wait, and add up what its processes compute within a minute."""
    with service() as running, tg.Client(running.url, running.api_key) as client:
        client.ask(SampleRequest(request_id="first", policy="nano", prompt_ids=[5], max_tokens=1))
        time.sleep(REST_SECONDS)
        before, began = _seconds(running), time.perf_counter()
        time.sleep(SECONDS)
        after, passed = _seconds(running), time.perf_counter() - began
    used = {kind: 100 * (after[kind] - before.get(kind, 0.0)) / passed for kind in after}
    total = sum(used.values())
    most = sorted(used, key=used.__getitem__, reverse=True)[:3]
    figure = Figure(
        what=f"an idle service with a model in memory, {SECONDS:.0f} s",
        asked=f"<= {ASKED:.0f} % of a core",
        measured=f"{total:.1f} %: {', '.join(f'{kind} {used[kind]:.1f}' for kind in most)}, others "
        f"{total - sum(used[kind] for kind in most):.1f}",
        reached=total <= ASKED,
    )
    return write_result("idle", [figure], {"percent": used})


def _seconds(running: Service) -> dict[str, float]:
    """Return the processor time of the service's processes so far, by kind."""
    found: dict[str, float] = {}
    named = {one.pid: kind for kind, every in processes_by_kind(running, VICTIMS).items() for one in every}
    root = psutil.Process(running.process.pid)
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            kind = named.get(process.pid, "other processes")
            found[kind] = found.get(kind, 0.0) + times.user + times.system
    return found
