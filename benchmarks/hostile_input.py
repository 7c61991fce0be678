"""The effect of one tenant's hostile chat templates and images on everybody else.

One tenant sends 30 templates and 60 images, one after the other and 8 at a time. Meanwhile the health is
asked for, and another tenant submits jobs whose description has 100 KB.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import multiprocessing
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx

from benchmarks import hostile_images
from benchmarks.common import Figure, Service, service, write_result
from benchmarks.hostile_templates import COMPILED, TEMPLATES

MOST_HEALTH_MS = 200.0
MOST_RATIO = 2.0
ROUNDS = 2
"""How often all of it is sent."""
QUIET_JOBS = 10
_HEALTH_PAUSE_SECONDS = 0.02
_JOB_PAUSE_SECONDS = 0.2
_REQUEST_SECONDS = 300.0

_TEMPLATES = [*itertools.islice(TEMPLATES.values(), 30 - len(COMPILED)), *COMPILED.values()]


@dataclass(slots=True)
class Seen:
    """What others saw, in seconds."""

    health: list[float] = field(default_factory=list)
    jobs: list[float] = field(default_factory=list)

    @property
    def health_p99_ms(self) -> float:
        """The 99th percentile of the health's response time."""
        return 1000 * sorted(self.health)[int(0.99 * len(self.health))]


def measure() -> list[Figure]:
    """Compare each attack with the quiet time right before and after it."""
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    with service() as running:
        good, bad = running.key_of("good"), running.key_of("bad")
        _attack(running.url, bad, "templates", 1, rounds=1)  # starts the children
        for kind, at_once in itertools.product(("templates", "images"), (1, 8)):
            before = _observe(running, good, lambda seen: len(seen.jobs) >= QUIET_JOBS)
            with _attacking(running.url, bad, kind, at_once) as alive:
                during = _observe(running, good, lambda seen: bool(seen.jobs) and not alive())
            after = _observe(running, good, lambda seen: len(seen.jobs) >= QUIET_JOBS)
            how = f"while another tenant sends {kind}, {at_once} at a time"
            figures += _compare(how, during, statistics.median(before.jobs + after.jobs))
            details[f"{kind}, {at_once} at a time"] = {
                "quiet": [before.health_p99_ms, after.health_p99_ms, before.jobs, after.jobs],
                "hostile": [during.health_p99_ms, max(during.health), len(during.health), during.jobs],
            }
            print(*(f"{each.what}: {each.measured}" for each in figures[-2:]), sep="\n", flush=True)
    return write_result("hostile_input", figures, details)


def _compare(how: str, during: Seen, quiet: float) -> list[Figure]:
    p99, job = during.health_p99_ms, statistics.median(during.jobs)
    return [
        Figure(
            what=f"health, p99, {how}",
            asked=f"<= {MOST_HEALTH_MS:g} ms",
            measured=f"{p99:.0f} ms of {len(during.health)}",
            reached=p99 <= MOST_HEALTH_MS,
            margin=MOST_HEALTH_MS / p99,
        ),
        Figure(
            what=f"job of 100 KB, {how}",
            asked=f"<= {MOST_RATIO:g} x quiet",
            measured=f"{job / quiet:.2f} x ({job:.2f} against {quiet:.2f} s)",
            reached=job <= MOST_RATIO * quiet,
            margin=MOST_RATIO * quiet / job,
        ),
    ]


def _observe(running: Service, key: str, enough: Callable[[Seen], bool]) -> Seen:
    seen, done = Seen(), threading.Event()

    def health() -> None:
        with httpx.Client(timeout=_REQUEST_SECONDS) as client:
            while not done.wait(_HEALTH_PAUSE_SECONDS):
                began = time.perf_counter()
                client.get(f"{running.url}/v1/health").raise_for_status()
                seen.health.append(time.perf_counter() - began)

    asking = threading.Thread(target=health)
    asking.start()
    try:
        with _client(running.url, key) as client:
            while not enough(seen):
                seen.jobs.append(_job(client))
                time.sleep(_JOB_PAUSE_SECONDS)
    finally:
        done.set()
        asking.join()
    return seen


def _job(client: httpx.Client) -> float:
    wanted = {
        "environment": {"id": "own/Env-v0", "kwargs": {"text": "p" * 100_000}},
        "rollout": "client",
        "steps": 1,
    }
    began = time.perf_counter()
    created = client.post("/v1/jobs", json=wanted).raise_for_status()
    seconds = time.perf_counter() - began
    client.post(f"/v1/jobs/{created.json()['job_id']}/cancel").raise_for_status()
    return seconds


@contextlib.contextmanager
def _attacking(url: str, key: str, kind: str, at_once: int) -> Iterator[Callable[[], bool]]:
    """Attack from a process of its own, as from another machine; yield whether it goes on."""
    process = multiprocessing.get_context("spawn").Process(
        target=_attack, args=(url, key, kind, at_once), daemon=True
    )
    process.start()
    try:
        yield process.is_alive
    finally:
        process.kill()
        process.join()


def _attack(url: str, key: str, kind: str, at_once: int, rounds: int = ROUNDS) -> None:
    with _client(url, key) as client, ThreadPoolExecutor(at_once) as threads:
        for number in range(rounds):
            if kind == "templates":
                # A different one each time: the service remembers those that it refused.
                mark = f"{{# {kind} {at_once} {number} #}}"
                list(threads.map(lambda one: _send_template(client, mark + one), _TEMPLATES))  # noqa: B023
            else:
                list(threads.map(lambda one: _send_image(client, one[1]), hostile_images.files()))


def _send_template(client: httpx.Client, template: str) -> None:
    client.post("/v1/renderer", json={"model": "nano", "chat_template": template})


def _send_image(client: httpx.Client, data: bytes) -> None:
    client.put(f"/v1/images/{hashlib.sha256(data).hexdigest()}", content=data)


def _client(url: str, key: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=_REQUEST_SECONDS)
