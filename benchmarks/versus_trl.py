"""The same training steps through our whole service and through TRL's GRPOTrainer, alternating, each alone.

Same model directory, same prompts, same number of tokens, same torch and threads. Ours is a complete job: a
service with its own processes, and a client that plays the episodes over HTTP.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import tinkergym as tg
from benchmarks.common import Figure, paired_ratios, service, write_result
from benchmarks.comparators import trl_grpo
from benchmarks.comparators.environment import python_with
from benchmarks.step_work import (
    ANSWER_TOKENS,
    GROUP_SIZE,
    GROUPS,
    LEARNING_RATE,
    Prompts,
    fixed_prompts,
    model_directory,
)
from tinkergym.schema.events import StepEvent

REQUIREMENTS = ("trl==1.16.0", "datasets==5.2.0")
STEPS = 16
WARM_UP = 4
"""Steps that do not count."""
ROUNDS = 5
RANK = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """One comparison."""

    name: str
    adapter: tg.LoRA | tg.FullParameters
    asked: float
    """Times as fast as TRL."""


CONTESTS = (
    Contest(name="LoRA", adapter=tg.LoRA(rank=RANK, alpha=2.0 * RANK), asked=1.5),
    Contest(name="full parameters", adapter=tg.FullParameters(), asked=1.35),
)


def measure(contests: tuple[Contest, ...] = CONTESTS, rounds: int = ROUNDS) -> list[Figure]:
    """Alternate both; compare the medians of the step times after warm-up, round by round."""
    figures, details = [], {}
    python = python_with(*REQUIREMENTS)
    with model_directory() as model:
        for contest in contests:
            ours: list[dict[str, Any]] = []
            theirs: list[dict[str, Any]] = []
            for _ in range(rounds):
                ours.append(run_ours(model, contest.adapter))
                theirs.append(run_trl(python, model, contest.adapter))
            figure = _figure(contest, ours, theirs)
            print(f"{figure.what}: {figure.measured}", flush=True)
            figures.append(figure)
            details[contest.name] = {"tinkergym": ours, "trl": theirs}
    work = {
        "groups": GROUPS,
        "group_size": GROUP_SIZE,
        "answer_tokens": ANSWER_TOKENS,
        "warm_up_steps": WARM_UP,
        "own_environment": ".venvs" in python.parts,
    }
    return write_result("versus_trl", figures, {"work": work, "contests": details})


def run_ours(
    model: Path, adapter: tg.LoRA | tg.FullParameters, steps: int = STEPS, groups: int = GROUPS
) -> dict[str, Any]:
    """Train in a new service and return the time of each step and its parts."""
    with service(None, f'preload=["{model}"]') as running:
        client = tg.Client(running.url, running.api_key)
        try:
            return train(client, model, adapter, steps=steps, groups=groups)
        finally:
            client.close()


def train(
    client: tg.Client,
    model: Path | str,
    adapter: tg.LoRA | tg.FullParameters,
    *,
    steps: int,
    groups: int = GROUPS,
    seed: int = 0,
    environment: type[Prompts] = Prompts,
    max_staleness: int = 0,
) -> dict[str, Any]:
    """Run one job to its end; the seconds are those between the records of two steps."""
    job = client.train(
        environment,
        model=str(model),
        steps=steps,
        seed=seed,
        algorithm=tg.GRPO(
            group_size=GROUP_SIZE,
            groups_per_step=groups,
            learning_rate=LEARNING_RATE,
            normalize="std",
        ),
        adapter=adapter,
        sampling=tg.Sampling(max_turn_tokens=ANSWER_TOKENS),
        checkpoint_every=steps,
        max_staleness=max_staleness,
    )
    records = [(event.time, event.body) for event in job.events() if isinstance(event.body, StepEvent)]
    job.wait()
    times = [time for time, _ in records]
    bodies = [body for _, body in records]
    assert {body.sampled_tokens for body in bodies} == {groups * GROUP_SIZE * ANSWER_TOKENS}
    return {
        # From the second step on; None keeps the indices equal to those of TRL's steps.
        "step_seconds": [None, *(after - before for before, after in pairwise(times))],
        "answer_tokens": [body.sampled_tokens for body in bodies],
        "sampling_seconds": [body.sampling_seconds for body in bodies],
        "learning_seconds": [body.learning_seconds for body in bodies],
        "parts": {
            name: statistics.median(
                body.metrics.get(name, 0.0) for body in bodies[-max(1, len(bodies) - WARM_UP) :]
            )
            for name in sorted(bodies[-1].metrics)
            if name.startswith("time/")
        },
        "staleness_mean": statistics.mean(
            body.metrics.get("staleness_mean", 0.0) for body in bodies[min(WARM_UP, len(bodies) - 1) :]
        ),
        "parity_max": max(body.metrics["parity_max"] for body in bodies),
        "first_record": times[0],
        "last_record": times[-1],
    }


def run_trl(python: Path, model: Path, adapter: tg.LoRA | tg.FullParameters) -> dict[str, Any]:
    """Train with TRL in a separate process and return the time of each step.

    Raises:
        RuntimeError: TRL failed; the text is the end of what it printed.
    """
    job = {
        "model": str(model),
        "prompts": fixed_prompts(GROUPS),
        "group_size": GROUP_SIZE,
        "answer_tokens": ANSWER_TOKENS,
        "steps": STEPS,
        "learning_rate": LEARNING_RATE,
        "lora_rank": adapter.rank if isinstance(adapter, tg.LoRA) else 0,
    }
    run = subprocess.run(
        [str(python), str(Path(trl_grpo.__file__)), json.dumps(job)],
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise RuntimeError(f"TRL failed:\n{run.stderr[-3000:]}")
    result: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return result


def median_seconds(run: dict[str, Any]) -> float:
    """Return the median of a run's steps after warm-up."""
    return statistics.median(float(seconds) for seconds in run["step_seconds"][WARM_UP:] if seconds)


def _figure(contest: Contest, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> Figure:
    tokens = {count for run in (*ours, *theirs) for count in run["answer_tokens"]}
    assert tokens == {GROUPS * GROUP_SIZE * ANSWER_TOKENS}, f"not the same work: {sorted(tokens)}"
    our_seconds, their_seconds = ([median_seconds(run) for run in runs] for runs in (ours, theirs))
    ratios = paired_ratios(their_seconds, our_seconds)
    ratio = statistics.median(ratios)
    return Figure(
        what=f"the same GRPO steps as TRL 1.16.0, {contest.name}, whole service",
        asked=f">= {contest.asked} x as fast",
        measured=f"{ratio:.2f} x ({statistics.median(our_seconds):.2f} against "
        f"{statistics.median(their_seconds):.2f} s per step; rounds {ratios[0]:.2f} to {ratios[-1]:.2f})",
        reached=ratio >= contest.asked,
        margin=ratio / contest.asked,
    )
