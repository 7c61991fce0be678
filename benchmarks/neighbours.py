"""The effect of a hostile tenant on another: step time and waiting time of a job, with and without it.

The hostile tenant floods `/v1/sample`, queues 200 jobs and leaves four unplayed, plays an environment that
crashes its process and one that blocks the interpreter, and finally does everything at once. Its client
represents one on another machine, so it runs at the lowest priority.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

import tinkergym as tg
from benchmarks.common import Figure, Service, paired_ratio, service, write_result
from tinkergym.schema.events import StepEvent
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec

MOST = 2.0
STEPS = 12
ROUNDS = 3
QUEUED_JOBS = 200
_SETTLE_SECONDS = 4.0
"""From the first hostile request until the other tenant submits a job."""

_PACK = """
import os, re
import tinkergym as tg

class Crash(tg.SingleTurnEnv):
    def ask(self, options):
        return "1+1="
    def score(self, answer):
        os._exit(1)

class Hang(tg.SingleTurnEnv):
    def ask(self, options):
        return "1+1="
    def score(self, answer):
        return float(bool(re.match(r"(a+)+$", "a" * 60 + "b")))  # holds the interpreter for years
"""


@dataclass(frozen=True, slots=True)
class Job:
    """What the well-behaved tenant observed in one job."""

    waiting_seconds: float
    """From its submission to its first training step."""
    step_seconds: float
    """Mean time of a training step, from the first to the last."""


def measure() -> list[Figure]:
    """Each hostile round is compared with the quiet rounds right before and after it."""
    figures: list[Figure] = []
    details: dict[str, Any] = {}
    with _pack_installed(), service() as running:
        good, bad = running.key_of("good"), running.key_of("bad")
        _train(running, good)  # warms the pool
        for name, behaviours in _HOSTILE.items():
            quiet = [_train(running, good)]
            hostile: list[Job] = []
            for _ in range(ROUNDS):
                with _misbehaving(running, bad, behaviours):
                    hostile.append(_train(running, good))
                _cancel_all(running, bad)
                quiet.append(_train(running, good))
            figures += _compare(name, quiet, hostile)
            details[name] = {
                "quiet": [asdict(each) for each in quiet],
                "hostile": [asdict(each) for each in hostile],
            }
            print(*(f"{each.what}: {each.measured}" for each in figures[-2:]), sep="\n", flush=True)
    return write_result("neighbours", figures, details)


def _compare(name: str, quiet: list[Job], hostile: list[Job]) -> list[Figure]:
    figures = []
    for field, what in (("step_seconds", "step time"), ("waiting_seconds", "waiting time")):
        beside = [getattr(job, field) for job in hostile]
        around = [(getattr(before, field) + getattr(after, field)) / 2 for before, after in pairwise(quiet)]
        ratio = paired_ratio(beside, around)
        seconds = f"{statistics.median(beside):.2f} against {statistics.median(around):.2f} s"
        figures.append(
            Figure(
                what=f"{what} of a job while another tenant {name}",
                asked=f"<= {MOST:g} x quiet",
                measured=f"{ratio:.2f} x ({seconds})",
                reached=ratio <= MOST,
                margin=MOST / ratio,
            )
        )
    return figures


def _train(running: Service, key: str) -> Job:
    times = []
    with tg.Client(running.url, key) as client:
        began = time.perf_counter()
        job = client.train(
            "board/TicTacToeVs-v0", steps=STEPS, algorithm=tg.GRPO(group_size=8, groups_per_step=8)
        )
        for event in job.events():
            if isinstance(event.body, StepEvent):
                times.append(time.perf_counter())
        job.wait()
    return Job(times[0] - began, (times[-1] - times[0]) / (len(times) - 1))


@contextlib.contextmanager
def _misbehaving(
    running: Service, key: str, behaviours: tuple[Callable[[str, str], None], ...]
) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_misbehave, args=(running.url, key, behaviours), daemon=True)
    process.start()
    time.sleep(_SETTLE_SECONDS)
    try:
        yield
    finally:
        process.kill()
        process.join()


def _misbehave(url: str, key: str, behaviours: tuple[Callable[[str, str], None], ...]) -> None:
    os.setsid()
    os.nice(19)
    with contextlib.suppress(OSError):  # Linux may weigh sessions against each other, not processes
        Path("/proc/self/autogroup").write_text("19")
    threads = [threading.Thread(target=behaviour, args=(url, key)) for behaviour in behaviours]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _flood(url: str, key: str) -> None:
    def stream(first: int) -> None:
        requests = [
            {
                "request_id": str(number),
                "policy": "nano",
                "prompt_ids": [(number * 7 + position * 13 + first) % 870 for position in range(500)],
                "max_tokens": 500,
                "seed": number,
            }
            for number in range(512)
        ]
        while True:
            with (
                contextlib.suppress(httpx.HTTPError),
                httpx.stream(
                    "POST",
                    f"{url}/v1/sample",
                    json={"requests": requests},
                    headers={"Authorization": f"Bearer {key}"},
                    timeout=60,
                ) as response,
            ):
                for _ in response.iter_lines():
                    pass

    for first in range(2):
        threading.Thread(target=stream, args=(first,)).start()


def _queue(url: str, key: str) -> None:
    time.sleep(1.0)  # playing ones come first, otherwise these would take all places of their tenant
    client = tg.Client(url, key)
    environment = EnvironmentRef(id="board/TicTacToeVs-v0")
    for _ in range(4):
        client.submit(RLSpec(environment=environment, steps=1, rollout="client"))  # nobody plays it
    for _ in range(QUEUED_JOBS):
        client.submit(RLSpec(environment=environment, steps=1000))


def _crash(url: str, key: str) -> None:
    _train_without_end("neighbours/Crash-v0", url, key)


def _hang(url: str, key: str) -> None:
    _train_without_end("neighbours/Hang-v0", url, key)


def _train_without_end(env: str, url: str, key: str) -> None:
    client = tg.Client(url, key)
    while True:
        with contextlib.suppress(tg.TinkerGymError):
            client.train(env, steps=1000, algorithm=tg.GRPO(group_size=8, groups_per_step=8)).wait()


_HOSTILE: dict[str, tuple[Callable[[str, str], None], ...]] = {
    "floods sampling": (_flood,),
    f"queues {QUEUED_JOBS} jobs and leaves 4 unplayed": (_queue,),
    "crashes environments": (_crash,),
    "hangs environments": (_hang,),
    "does all of this": (_flood, _queue, _crash, _hang),
}


def _cancel_all(running: Service, key: str) -> None:
    with tg.Client(running.url, key) as client:
        while live := [view for view in client.jobs(limit=500) if not view.state.final]:
            for view in live:
                with contextlib.suppress(tg.TinkerGymError):
                    client.job(view.job_id).cancel()
            time.sleep(0.5)


@contextlib.contextmanager
def _pack_installed() -> Iterator[None]:
    """Put a pack with the hostile environments where the service finds it."""
    with tempfile.TemporaryDirectory(prefix="tinkergym-bench-") as name:
        folder = Path(name)
        (folder / "neighbours_pack.py").write_text(_PACK)
        info = folder / "neighbours-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: neighbours\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(
            "[tinkergym.envs]\nneighbours/Crash-v0 = neighbours_pack:Crash\n"
            "neighbours/Hang-v0 = neighbours_pack:Hang\n"
        )
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (name, before)))
        try:
            yield
        finally:
            if before is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = before
