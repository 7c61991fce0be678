"""How well `client.estimate` predicts a job's duration: three jobs of different kinds.

The actual time is measured from the moment a worker takes the job to its end, which is what an estimate
predicts.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import tinkergym as tg
from benchmarks.common import Figure, service, write_result
from tinkergym.schema.events import JobState, StateEvent

BOARD = "board/TicTacToeVs-v0"
GOAL = 0.25


def measure() -> list[Figure]:
    """Estimate each job, run it, and compare; a short job before them loads the model."""
    found: dict[str, dict[str, float]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        service(None, 'preload=["nano"]') as running,
        tg.Client(running.url, running.api_key) as client,
    ):
        client.train(BOARD, steps=2).wait(progress=False, warn=False)
        for kind, (arguments, settings) in _jobs(Path(folder)).items():
            before = client.estimate(*arguments, kind=kind, **settings)
            start = {"rl": client.train, "sft": client.sft, "distillation": client.distill}[kind]
            job = start(*arguments, **settings)
            view = job.wait(progress=False, warn=False)
            found[kind] = {
                "estimated_seconds": before.seconds,
                "real_seconds": _seconds(job),
                "estimated_tokens": before.tokens,
                "real_tokens": view.used_tokens,
            }
    errors = {kind: abs(one["estimated_seconds"] / one["real_seconds"] - 1) for kind, one in found.items()}
    worst = max(errors.values())
    parts = ", ".join(
        f"{kind} {one['estimated_seconds']:.0f} s for {one['real_seconds']:.0f} s"
        for kind, one in found.items()
    )
    figure = Figure(
        what="estimate before the start against the real time, three jobs of different kinds",
        asked=f"within {GOAL:.0%}",
        measured=f"{worst:.0%} at most ({parts})",
        reached=worst <= GOAL,
        margin=GOAL / max(worst, 1e-3),
    )
    return write_result("estimate", [figure], {"jobs": found})


def _jobs(folder: Path) -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    rows = [{"prompt": f"{a} + {b}", "completion": str(a + b)} for a in range(40) for b in range(40)]
    data = folder / "sums.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    algorithm = tg.GRPO(group_size=8, groups_per_step=8)
    return {
        "rl": ((BOARD,), {"steps": 40, "algorithm": algorithm}),
        "sft": ((str(data),), {"steps": 100, "held_out": 0.02}),
        "distillation": ((BOARD,), {"teacher": "nano", "steps": 30, "episodes_per_step": 32}),
    }


def _seconds(job: tg.Job) -> float:
    events = list(job.log())
    started = next(
        event.time
        for event in events
        if isinstance(event.body, StateEvent) and event.body.state is JobState.STARTING
    )
    return events[-1].time - started
