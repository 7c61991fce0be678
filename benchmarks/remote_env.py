"""Steps per second of tic-tac-toe on an environment server, over loopback, with 64 sessions at once."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.common import Figure, write_result

ENVIRONMENT = "board/TicTacToeVs-v0"
TOKEN = "a-token-for-this-benchmark"
SESSIONS = 64
PROCESSES = (1, 2)
"""Client processes that share the sessions; each session has its own thread."""
SECONDS = 10.0
RUNS = 3
ASKED = 1500

_CELL = re.compile(r"\b[a-c][1-3]\b")


def measure() -> list[Figure]:
    """Measure each distribution of the sessions over client processes `RUNS` times; the best one counts."""
    details: dict[str, Any] = {}
    with server() as url:
        for processes in PROCESSES:
            runs = [_run(url, processes) for _ in range(RUNS)]
            details[f"{processes} client processes"] = runs
            print(
                f"{processes} client processes: {', '.join(f'{run:.0f}' for run in runs)} steps/s", flush=True
            )
    medians = {name: sorted(runs)[len(runs) // 2] for name, runs in details.items()}
    name, best = max(medians.items(), key=lambda item: item[1])
    figure = Figure(
        what=f"remote environment over loopback, {SESSIONS} sessions, tic-tac-toe",
        asked=f">= {ASKED:,} steps/s",
        measured=f"{best:,.0f} steps/s (median of {RUNS}, {name})",
        reached=best >= ASKED,
    )
    return write_result("remote_env", [figure], {"steps_per_second": details, "seconds": SECONDS})


@contextlib.contextmanager
def server() -> Iterator[str]:
    """Run an environment server in a separate process and yield its URL."""
    command = [sys.executable, "-m", "tinkergym.cli.main", "serve-env", ENVIRONMENT, "--port", "0"]
    process = subprocess.Popen(
        [*command, "--capacity", str(SESSIONS), "--token", TOKEN], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], 60.0)
        line = process.stdout.readline() if ready else ""
        found = re.search(r"ws://\S+", line)
        if found is None:
            raise RuntimeError(f"the environment server did not start: {line!r}")
        yield found.group()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def _run(url: str, processes: int) -> float:
    context = multiprocessing.get_context("spawn")
    start, queue = context.Barrier(processes), context.Queue()
    shares = [len(range(index, SESSIONS, processes)) for index in range(processes)]
    children = [
        context.Process(target=_client, args=(url, share, index, start, queue))
        for index, share in enumerate(shares)
    ]
    for child in children:
        child.start()
    rates = [queue.get(timeout=120) for _ in children]
    for child in children:
        child.join()
    return float(sum(rates))


def _client(url: str, sessions: int, index: int, start: Any, queue: Any) -> None:
    """Play with some sessions; put the steps per second into the queue."""
    import tinkergym as tg

    envs = [tg.make("tinkergym/Remote-v0", url=url, token=TOKEN) for _ in range(sessions)]
    for number, env in enumerate(envs):
        env.reset(seed=1000 * index + number)
    counts = [0] * sessions
    ends_at = 0.0

    def play(number: int) -> None:
        env, choice = envs[number], random.Random(number)
        seed, over, observation = number, True, ""
        while time.perf_counter() < ends_at:
            if over:
                seed += SESSIONS
                observation, _ = env.reset(seed=seed)
            # Free cells are shown by name.
            observation, _, terminated, truncated, _ = env.step(choice.choice(_CELL.findall(observation)))
            over = terminated or truncated
            counts[number] += 1

    threads = [threading.Thread(target=play, args=(number,)) for number in range(sessions)]
    start.wait()
    begun = time.perf_counter()
    ends_at = begun + SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queue.put(sum(counts) / (time.perf_counter() - begun))
    for env in envs:
        env.close()
    queue.close()
    queue.join_thread()
    os._exit(0)
