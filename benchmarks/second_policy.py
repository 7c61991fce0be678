"""Seconds per step of a job with two policies on one base model, against one policy that plays both seats.

Both play the same games, so they sample and train on the same number of tokens. The jobs alternate in one
service, a few steps each, and the ratio is computed within each pair of neighbours.
"""

from __future__ import annotations

import os
import statistics
from typing import Any

import tinkergym as tg
from benchmarks.common import Figure, paired_ratio, service, write_result
from benchmarks.multi_agent import followed

GAME = "board/TicTacToe-v0"
PAIRS = int(os.environ.get("TINKERGYM_BENCHMARK_PAIRS", "4"))
STEPS = 12
WARM_UP = 3
"""Initial steps of each job that do not count."""
ASKED = 1.35
JOBS: dict[str, dict[str, Any]] = {
    "two policies": {"x": tg.Train(), "o": tg.Train()},
    "one policy": {"x": tg.Train(), "o": tg.opponents.SharedWith("x")},
}


def measure() -> list[Figure]:
    """Train alternately; the figure is the median ratio of the median step times."""
    seconds: dict[str, list[float]] = {name: [] for name in JOBS}
    tokens: dict[str, list[float]] = {name: [] for name in JOBS}
    parts: dict[str, list[dict[str, float]]] = {name: [] for name in JOBS}
    with service() as running, tg.Client(running.url, running.api_key) as client:
        for pair in range(PAIRS):
            for name, agents in JOBS.items():
                job = client.train(
                    GAME,
                    # An untrained model makes few legal moves; illegal ones are replaced, so that games last.
                    env_kwargs={"on_illegal": "random"},
                    agents=agents,
                    steps=STEPS,
                    seed=pair,
                    algorithm=tg.GRPO(group_size=8, groups_per_step=8, learning_rate=1e-3),
                    sampling=tg.Sampling(max_turn_tokens=8),
                )
                counted = followed(job)[0][WARM_UP:]
                seconds[name].append(statistics.median(step.step_seconds for step in counted))
                tokens[name].append(statistics.fmean(step.trained_tokens for step in counted))
                parts[name].append(
                    {
                        "sampling": statistics.median(step.sampling_seconds for step in counted),
                        "learning": statistics.median(step.learning_seconds for step in counted),
                    }
                )
                print(f"{name}: {seconds[name][-1]:.2f} s, {tokens[name][-1]:.0f} tokens", flush=True)
    two, one = JOBS
    ratio = paired_ratio(seconds[two], seconds[one])
    figure = Figure(
        what=f"a second trained policy on the same base, the same games, {STEPS - WARM_UP} steps, "
        f"{PAIRS} pairs",
        asked=f"<= {ASKED} x the step time",
        measured=f"{ratio:.2f} x ({statistics.median(seconds[two]):.2f} against "
        f"{statistics.median(seconds[one]):.2f} s; {statistics.fmean(tokens[two]):.0f} and "
        f"{statistics.fmean(tokens[one]):.0f} tokens)",
        reached=ratio <= ASKED,
        margin=ASKED / ratio,
    )
    return write_result(
        "second_policy", [figure], {"step_seconds": seconds, "tokens": tokens, "parts": parts}
    )
