"""The gateway under malicious bodies: its memory, its responses, and how long everyone else waits."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx
import psutil

from benchmarks.common import Figure, Service, service, write_result

BODIES = 10
BODY_BYTES = 31 * 2**20
NEARLY_ALLOWED_BYTES = 8 * 2**20 - 4096
DESCRIPTION_BYTES = 4 * 2**20
ASKED_MIB = 128
ASKED_HEALTH_MS = 200
ASKED_ANSWER_SECONDS = 1.0
HEAD = b'{"requests":[{"request_id":"a","policy":"nano","max_tokens":1,"prompt_ids":['


def measure() -> list[Figure]:
    """Ten large bodies at once, then one job description of unknown settings."""
    with service() as running:
        gateway = _gateway(running)
        _watched(running, gateway, lambda: time.sleep(3))  # warm
        runs = {
            "31 MiB": _watched(running, gateway, lambda: _at_once(running, _sample(b"1,", BODY_BYTES))),
            "all that is allowed": _watched(
                running, gateway, lambda: _at_once(running, _sample(b"12345678,", NEARLY_ALLOWED_BYTES))
            ),
        }
        described = _watched(running, gateway, lambda: _describe(running))
    figures = [_under_bodies(what, run) for what, run in runs.items()] + [_of_description(described)]
    return write_result("gateway_load", figures, {**runs, "description": described})


def _under_bodies(what: str, run: dict[str, Any]) -> Figure:
    size = f"{BODIES} bodies of {what}" if what[0].isdigit() else f"{BODIES} bodies of {what}, 8 MiB"
    return Figure(
        what=f"gateway under {size}: memory, health p99",
        asked=f"+ <= {ASKED_MIB} MiB, <= {ASKED_HEALTH_MS} ms",
        measured=f"+ {run['more_mib']:.0f} MiB, {run['health_p99_ms']:.0f} ms",
        reached=run["more_mib"] <= ASKED_MIB and run["health_p99_ms"] <= ASKED_HEALTH_MS,
    )


def _of_description(run: dict[str, Any]) -> Figure:
    return Figure(
        what="a 4 MiB job description of unknown settings: answer, health p99",
        asked=f"<= {ASKED_ANSWER_SECONDS:g} s, <= {ASKED_HEALTH_MS} ms",
        measured=f"{run['answers'][0]['seconds']:.2f} s, {run['health_p99_ms']:.0f} ms",
        reached=run["answers"][0]["seconds"] <= ASKED_ANSWER_SECONDS
        and run["health_p99_ms"] <= ASKED_HEALTH_MS,
    )


def _sample(value: bytes, size: int) -> bytes:
    return HEAD + value * ((size - len(HEAD) - 8) // len(value)) + b"1]}]}"


def _at_once(running: Service, body: bytes) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    threads = [
        threading.Thread(target=lambda: answers.append(_post(running, "/v1/sample", body)))
        for _ in range(BODIES)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def _describe(running: Service) -> list[dict[str, Any]]:
    names = {f"setting_{number}": 1 for number in range(DESCRIPTION_BYTES // 20)}
    return [_post(running, "/v1/jobs", json.dumps(names).encode())]


def _post(running: Service, path: str, body: bytes) -> dict[str, Any]:
    began, status = time.perf_counter(), None
    with suppress(httpx.HTTPError):  # a refused sender may be disconnected
        headers = {"Authorization": f"Bearer {running.api_key}"}
        status = httpx.post(running.url + path, content=body, headers=headers, timeout=120).status_code
    return {"status": status, "seconds": time.perf_counter() - began}


def _gateway(running: Service) -> psutil.Process:
    children = psutil.Process(running.process.pid).children(recursive=True)
    return next(child for child in children if "backend.gateway" in child.cmdline())


def _watched(running: Service, gateway: psutil.Process, act: Callable[[], Any]) -> dict[str, Any]:
    """Do something while polling the health and recording the gateway's memory."""
    before = gateway.memory_info().rss
    peak, waits, done = [before], [], threading.Event()

    def weigh() -> None:
        while not done.wait(0.01):
            peak[0] = max(peak[0], gateway.memory_info().rss)

    def ask() -> None:
        with httpx.Client(base_url=running.url, timeout=60) as client:
            while not done.is_set():
                began = time.perf_counter()
                client.get("/v1/health")
                waits.append((time.perf_counter() - began) * 1000)

    threads = [threading.Thread(target=weigh), threading.Thread(target=ask)]
    for thread in threads:
        thread.start()
    answers = act()
    time.sleep(1.0)
    done.set()
    for thread in threads:
        thread.join()
    return {
        "answers": answers,
        "more_mib": (peak[0] - before) / 2**20,
        "health_p99_ms": statistics.quantiles(waits, n=100)[98],
        "health_worst_ms": max(waits),
        "health_asked": len(waits),
    }
