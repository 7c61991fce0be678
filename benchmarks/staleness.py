"""A step's time with `max_staleness` 0 and 1: what overlapping episodes with learning saves.

Two kinds of work, equal but for the environment: one is ready at once, so that sampling and learning share
the same cores all the time, and one takes a while to begin an episode. A strict job's episodes are reset
while the policy learns too, so neither leaves much to gain: the figures say that playing ahead costs nothing.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import tinkergym as tg
from benchmarks.common import Figure, paired_ratio, service, write_result
from benchmarks.step_work import Prompts, model_directory
from benchmarks.versus_trl import median_seconds, train

STEPS = 12
ROUNDS = 4
WAIT_SECONDS = 0.5
ASKED = 0.9


class SlowToBegin(Prompts):
    """Takes time to reset, like a simulator or a container started for each episode."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Wait and draw a prompt by the seed."""
        time.sleep(WAIT_SECONDS)
        return super().reset(seed=seed, options=options)


def measure() -> list[Figure]:
    """Alternate both settings in one service, per kind of work; compare the median step times in pairs."""
    figures, details = [], {}
    kinds = (
        ("an environment that is ready at once", Prompts),
        (f"an environment that takes {WAIT_SECONDS} s to begin", SlowToBegin),
    )
    with model_directory() as model, service(None, f'preload=["{model}"]') as running:
        client = tg.Client(running.url, running.api_key)
        for name, environment in kinds:
            runs: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
            for _ in range(ROUNDS):
                for staleness, some in runs.items():
                    some.append(
                        train(
                            client,
                            model,
                            tg.LoRA(rank=8),
                            steps=STEPS,
                            environment=environment,
                            max_staleness=staleness,
                        )
                    )
            medians = {staleness: [median_seconds(run) for run in some] for staleness, some in runs.items()}
            ratio = paired_ratio(medians[0], medians[1])
            seconds = {staleness: statistics.median(found) for staleness, found in medians.items()}
            stale = statistics.mean(run["staleness_mean"] for run in runs[1])
            figures.append(
                Figure(
                    what=f"max_staleness=1 against 0, {name}",
                    asked=f">= {ASKED} x as fast",
                    measured=f"{ratio:.2f} x ({seconds[1]:.2f} against {seconds[0]:.2f} s per step; tokens "
                    f"{stale:.2f} versions stale)",
                    reached=ratio >= ASKED,
                    margin=ratio / ASKED,
                )
            )
            details[name] = {f"max_staleness={staleness}": some for staleness, some in runs.items()}
        client.close()
    return write_result("staleness", figures, details)
