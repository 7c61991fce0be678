"""How long a job played by a script pauses when the script ends and another one attaches to it.

The script is ended by Ctrl-C, by SIGTERM and by `kill -9` in turn, in the middle of a step. The clock starts
when its process is gone, just before the new client attaches, and stops at the first new step.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time

import tinkergym as tg
from benchmarks.common import Figure, Service, service, write_result

GOAL_SECONDS = 5.0
ENDS = {"Ctrl-C": signal.SIGINT, "SIGTERM": signal.SIGTERM, "`kill -9`": signal.SIGKILL}
_STEPS_BEFORE = 3
_PATIENCE_SECONDS = 60.0

# The cost of a step is not measured, so the job's steps are small.
_SCRIPT = """
import tinkergym as tg
job = tg.Client().train(
    "board/TicTacToeVs-v0",
    steps=100_000,
    rollout="client",
    algorithm=tg.GRPO(group_size=4, groups_per_step=2),
)
for event in job.events():
    if event.body.type == "step":
        print(job.id, event.body.step, flush=True)
"""


def measure(runs: int = 3) -> list[Figure]:
    """End a script of a new job in each way `runs` times, in turn, and attach."""
    seconds: dict[str, list[float]] = {name: [] for name in ENDS}
    with service() as running:
        for _ in range(runs):
            for name, number in ENDS.items():
                seconds[name].append(_until_next_step(running, number))
                print(f"{name}: {seconds[name][-1]:.2f} s", flush=True)
    figures = [_figure(name, each) for name, each in seconds.items()]
    return write_result("reattach", figures, {"seconds": seconds, "goal_seconds": GOAL_SECONDS})


def _figure(name: str, seconds: list[float]) -> Figure:
    worst = max(seconds)
    return Figure(
        what=f"re-attach after {name} until the first new step",
        asked=f"<= {GOAL_SECONDS:g} s",
        measured=f"{statistics.median(seconds):.1f} s (worst of {len(seconds)}: {worst:.1f})",
        reached=worst <= GOAL_SECONDS,
        margin=GOAL_SECONDS / worst,
    )


def _until_next_step(running: Service, number: signal.Signals) -> float:
    """Play a job in a script, end the script by a signal, and return how long until a new client's step."""
    process = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT],
        env=os.environ | running.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            job_id, step = line.split()
            if int(step) >= _STEPS_BEFORE:
                break
        else:
            raise RuntimeError("the script ended before its job had made a few steps")
        process.send_signal(number)
        # Steps that it still finished are not the new client's.
        reached = max([int(step), *(int(line.split()[1]) for line in process.stdout)])
    finally:
        if process.poll() is None and number is not signal.SIGKILL:
            process.terminate()
        process.wait(30)
    with tg.Client(running.url, running.api_key) as client:
        return _step_after(client, job_id, reached)


def _step_after(client: tg.Client, job_id: str, reached: int) -> float:
    began = time.perf_counter()
    reached = max(reached, client.job(job_id).view().step)
    job = client.attach(job_id)
    try:
        for event in job.events():
            if event.body.type == "step" and event.body.step > reached:
                return time.perf_counter() - began
    finally:
        job.cancel()
    raise RuntimeError(f"job {job_id} ended without another step")
