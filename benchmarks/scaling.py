"""Whether a training step's time grows faster than its number of episodes."""

from __future__ import annotations

import statistics

import tinkergym as tg
from benchmarks.common import Figure, write_result
from benchmarks.step_work import GROUP_SIZE, model_directory
from benchmarks.versus_trl import run_ours

GROUPS = {8: 10, 64: 5}
"""Groups per step, and how many steps are measured after the first two."""


def measure() -> list[Figure]:
    """Train with few and with many episodes per step, in a new service each time."""
    with model_directory() as model:
        runs = {
            groups * GROUP_SIZE: run_ours(model, tg.LoRA(rank=8), steps=steps + 2, groups=groups)
            for groups, steps in GROUPS.items()
        }
    seconds = {episodes: statistics.median(run["step_seconds"][2:]) for episodes, run in runs.items()}
    (few, short), (many, long) = sorted(seconds.items())
    growth = (long / short) / (many / few)
    figure = Figure(
        what=f"step time from {few} to {many} episodes, against growing with their number",
        asked="<= 1.0 (linear)",
        measured=f"{growth:.2f} ({short:.2f} s -> {long:.2f} s)",
        reached=growth <= 1.0,
        margin=1.0 / growth,
    )
    return write_result("scaling", [figure], {"runs": {str(episodes): run for episodes, run in runs.items()}})
