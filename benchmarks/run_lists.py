"""How fast one finds and compares runs: 300 jobs of 200 steps each in a service's database.

The service is the gateway's own application over a real store; no worker runs. Each call is measured as a
client sees it, HTTP and reading included, and by the CPU time of the whole process, which both sides share.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
from collections.abc import Callable
from statistics import median

import tinkergym as tg
from backend.store.key_rows import LOCAL_TENANT
from backend.testing.scripted_service import ScriptedService
from benchmarks.common import Figure, write_result
from tinkergym.cli import jobs as jobs_command
from tinkergym.schema.events import EpisodeEvent, EvaluationEvent, JobState, StepEvent
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.summaries import JobLabels

_JOBS, _STEPS, _METRICS, _REPEATS = 300, 200, 40, 9
_GOAL_SECONDS = 0.3
_BOARD = "board/TicTacToeVs-v0"


def measure() -> list[Figure]:
    """Measure list, search and comparison."""
    with ScriptedService(environments=[_BOARD]) as service:
        _fill(service)
        os.environ |= {"TINKERGYM_URL": service.url, "TINKERGYM_API_KEY": service.api_key}
        with tg.Client() as client:
            first, second = (one.job_id for one in client.jobs(limit=2))
            calls: dict[str, Callable[[], object]] = {
                "list": lambda: client.jobs(limit=_JOBS),
                "search": lambda: client.jobs("run-7 board", tag="even", limit=_JOBS),
                "sort by reward": lambda: client.jobs(sort="reward", limit=20),
                "compare two": lambda: client.compare(first, second).lines(),
                "show one": lambda: client.job(first).overview().lines(),
                "the command `jobs`": _command,
            }
            figures = [_measured(name, call) for name, call in calls.items()]
    return write_result("run_lists", figures, {"jobs": _JOBS, "steps": _STEPS, "metrics": _METRICS})


def _measured(name: str, call: Callable[[], object]) -> Figure:
    call()
    wall, cpu = [], []
    for _ in range(_REPEATS):
        began, used = time.perf_counter(), time.process_time()
        call()
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - used)
    seconds = median(wall)
    return Figure(
        what=f"{name}, of {_JOBS} jobs of {_STEPS} steps",
        asked=f"<= {_GOAL_SECONDS} s",
        measured=f"{seconds:.3f} s (CPU {median(cpu):.3f} s)",
        reached=seconds <= _GOAL_SECONDS,
        margin=_GOAL_SECONDS / max(seconds, 1e-3),
    )


def _command() -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        jobs_command.app(["list", "--limit", str(_JOBS)], standalone_mode=False)


def _fill(service: ScriptedService) -> None:
    store = service._store
    tenant, server = store.tenant(LOCAL_TENANT), store.service()
    for number in range(_JOBS):
        spec = RLSpec(
            environment=EnvironmentRef(id=_BOARD),
            rollout="client",
            steps=_STEPS,
            name=f"run-{number}",
            seed=number,
        )
        job_id = tenant.create_job(spec, {}).job_id
        lease = server.acquire(job_id, f"worker-{number}", 1e9, now=time.time())
        assert lease is not None
        server.set_state(lease, JobState.RUNNING)
        server.append_events(lease, [body for step in range(1, _STEPS + 1) for body in _step(number, step)])
        server.set_state(lease, JobState.COMPLETED)
        tenant.set_labels(job_id, JobLabels(tags=["even"] if number % 2 == 0 else ["odd"]))


def _step(number: int, step: int) -> list[StepEvent | EpisodeEvent | EvaluationEvent]:
    reward = step / _STEPS * (number % 7) / 7
    body = StepEvent(
        step=step,
        steps=_STEPS,
        policy_version=step,
        reward_mean=reward,
        loss=0.1,
        tokens_per_second=100.0,
        step_seconds=1.0,
        sampling_seconds=0.5,
        learning_seconds=0.5,
        seconds_left=float(_STEPS - step),
        metrics={f"env/metric_{name}": reward * name for name in range(_METRICS)},
    )
    episode = EpisodeEvent(
        step=step,
        episode_id=f"{step}-0",
        seed=step,
        stop_reason="terminated",
        episode_return=reward,
        transcript=[("user", "x" * 500), ("assistant", "y" * 200)],
    )
    evaluation = EvaluationEvent(
        name="held_out",
        step=step,
        policy_version=step,
        episodes=40,
        failed_episodes=0,
        mean=reward,
        low=reward - 0.1,
        high=reward + 0.1,
    )
    return [body, episode, *([evaluation] if step % 50 == 0 else [])]
