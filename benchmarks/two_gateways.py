"""Sampling through two gateways on PostgreSQL against one gateway on SQLite, with the same model.

`python -m benchmarks.two_gateways [--runs N]`, with PostgreSQL installed. Both services are asked alternately
by two processes of HTTP clients each: both processes ask the one gateway, or each asks one of the two.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

import tinkergym as tg
from benchmarks.common import Figure, Service, free_port, paired_ratio, service, write_result
from benchmarks.http_sampling import ANSWER_TOKENS, CLIENTS, REQUESTS_EACH, RUNS, http_clients
from tests.backend.postgres_server import PostgresServer
from tinkergym.schema.sampling import SampleRequest

_GOAL = 1.0
_START_SECONDS = 120.0


def main() -> int:
    """Measure, write the result, and say whether the goal was reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.two_gateways", description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help=f"pairs to measure (default: {RUNS})")
    runs = min(parser.parse_args().runs, RUNS)
    with ExitStack() as stack:
        one = stack.enter_context(service(timeout_seconds=_START_SECONDS))
        server = PostgresServer()
        stack.callback(server.stop)
        server.execute("CREATE DATABASE gym")
        shared = stack.enter_context(tempfile.TemporaryDirectory(prefix="tinkergym-blobs-"))
        settings = f"database_url={server.url('gym')}", f"blobs={shared}"
        two = stack.enter_context(service(None, *settings, timeout_seconds=_START_SECONDS))
        second = stack.enter_context(_second_gateway(settings))
        _load(one)
        _load(two)
        sides = {
            "one": stack.enter_context(_Asking([one.url, one.url], one.api_key)),
            "two": stack.enter_context(_Asking([two.url, second], two.api_key)),
        }
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for run in range(runs + 1):
            for name, asking in sides.items():
                seconds[name].append(asking.ask(run))
    for times in seconds.values():
        del times[0]  # of connections and caches
    tokens = 2 * CLIENTS * REQUESTS_EACH * ANSWER_TOKENS
    ratio = paired_ratio(seconds["one"], seconds["two"])
    rates = {name: tokens / statistics.median(times) for name, times in seconds.items()}
    figure = Figure(
        what="sampling through two gateways on PostgreSQL against one on SQLite",
        asked=f">= {_GOAL}",
        measured=f"{ratio:.2f} x ({rates['two']:,.0f} against {rates['one']:,.0f} tokens/s)",
        reached=ratio >= _GOAL,
        margin=ratio / _GOAL,
    )
    write_result("two_gateways", [figure], seconds, command="python -m benchmarks.two_gateways")
    print(f"{figure.what}: {figure.measured}")
    return not figure.reached


@contextmanager
def _second_gateway(settings: Sequence[str]) -> Iterator[str]:
    """Run another gateway on the same database; yield its URL."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="tinkergym-gateway-") as home:
        wanted = [*settings, f"data_dir={home}", f"port={port}"]
        words = [word for one in wanted for word in ("--set", one)]
        program = [sys.executable, "-m", "backend.app.supervisor", "--role", "gateway", *words]
        with (Path(home) / "serve.log").open("wb") as log:
            process = subprocess.Popen(program, env=os.environ, stdout=log, stderr=subprocess.STDOUT)
            try:
                _wait_for(f"http://127.0.0.1:{port}", process, Path(home) / "serve.log")
                yield f"http://127.0.0.1:{port}"
            finally:
                process.terminate()
                process.wait(60)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with suppress(httpx.HTTPError, json.JSONDecodeError):
            if httpx.get(f"{url}/v1/health", params={"sample": "false"}, timeout=5.0).status_code == 200:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the second gateway did not start:\n{log.read_text()[-4000:]}")
        time.sleep(0.1)


def _load(running: Service) -> None:
    with tg.Client(running.url, running.api_key) as client:
        request = SampleRequest(request_id="r", policy="nano", prompt_ids=[5], max_tokens=1)
        client.ask(request)  # waits until the model is loaded


class _Asking:
    """Processes of HTTP clients, one per URL."""

    def __init__(self, urls: Sequence[str], key: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._begin = [context.Queue() for _ in urls]
        self._times: Any = context.Queue()
        self._processes = [
            context.Process(target=http_clients, args=(url, key, "nano", begin, self._times), daemon=True)
            for url, begin in zip(urls, self._begin, strict=True)
        ]
        for process in self._processes:
            process.start()

    def ask(self, run: int) -> float:
        """Let all ask at once; return the seconds until the last was answered."""
        for begin in self._begin:
            begin.put(run)
        return max(self._times.get(timeout=600) for _ in self._processes)

    def __enter__(self) -> _Asking:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
            process.join()


if __name__ == "__main__":
    sys.exit(main())
