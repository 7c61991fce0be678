"""A step's time with `max_staleness` 0 and 1, in turn: what it saves that episodes overlap with learning.

Two kinds of work, equal but for the environment: one is ready at once, so that sampling and learning share
the same cores all the time, and one takes a while to begin an episode. A strict job's episodes are reset
while the policy learns too, so neither leaves much to gain: the figures say that playing ahead costs nothing.
"""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import tinkergym as tg
from benchmarks.common import Figure, paired_ratio, service, write_result
from benchmarks.step_work import ANSWER_TOKENS, GROUP_SIZE, GROUPS, LEARNING_RATE, Prompts, model_directory
from tinkergym.wire import StepEvent

STEPS = 12
WARM_UP = 4
"""Steps that do not count."""
ROUNDS = 4
WAIT_SECONDS = 0.5
ASKED = 0.9


class SlowToBegin(Prompts):
    """Takes its time to reset, as a simulator or a container does that is started for each episode."""

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
                    some.append(_train(client, model, environment, staleness))
            medians = {staleness: [_median(run) for run in some] for staleness, some in runs.items()}
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
    write_result("staleness", figures, details)
    return figures


def _train(client: tg.Client, model: Path, environment: type[Prompts], staleness: int) -> dict[str, Any]:
    job = client.train(
        environment,
        model=str(model),
        steps=STEPS,
        algorithm=tg.GRPO(
            group_size=GROUP_SIZE, groups_per_step=GROUPS, learning_rate=LEARNING_RATE, normalize="std"
        ),
        adapter=tg.LoRA(rank=8),
        sampling=tg.Sampling(max_turn_tokens=ANSWER_TOKENS),
        checkpoint_every=STEPS,
        max_staleness=staleness,
    )
    records = [(event.time, event.body) for event in job.events() if isinstance(event.body, StepEvent)]
    job.wait()
    assert {body.sampled_tokens for _, body in records} == {GROUPS * GROUP_SIZE * ANSWER_TOKENS}
    return {
        "step_seconds": [after - before for (before, _), (after, _) in pairwise(records)],
        "sampling_seconds": [body.sampling_seconds for _, body in records],
        "learning_seconds": [body.learning_seconds for _, body in records],
        "staleness_mean": statistics.mean(
            body.metrics.get("staleness_mean", 0.0) for _, body in records[WARM_UP:]
        ),
    }


def _median(run: dict[str, Any]) -> float:
    return statistics.median(float(seconds) for seconds in run["step_seconds"][WARM_UP - 1 :])
