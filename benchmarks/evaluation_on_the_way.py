"""The cost of evaluation during training per step: tic-tac-toe with and without it, alternating.

The time per step is measured from the first step's event to the last one's, so evaluations in between count
wherever they slow down training; those before the first and after the last step do not.
"""

from __future__ import annotations

import statistics

import tinkergym as tg
from benchmarks.common import Figure, paired_ratio, service, write_result
from tinkergym.schema.evaluate_every import EvaluateEvery
from tinkergym.schema.events import StepEvent

ENVIRONMENT = "board/TicTacToeVs-v0"
STEPS = 31
EVERY = 10
EPISODES = 64
ROUNDS = 3
WARM_UP_STEPS = 5
GOAL = 1.10


def measure() -> list[Figure]:
    """Alternate both in one service; compare pair by pair."""
    seconds: dict[str, list[float]] = {"without": [], "with": []}
    evaluated = 0
    with service(None, 'preload=["nano"]') as running, tg.Client(running.url, running.api_key) as client:
        for number in range(ROUNDS + 1):
            for name, found in seconds.items():
                evaluate = [EvaluateEvery(EVERY, episodes=EPISODES)] if name == "with" else []
                step_seconds, evaluations = _train(client, evaluate, STEPS if number else WARM_UP_STEPS)
                if number:  # the first round warms up
                    found.append(step_seconds)
                    evaluated += evaluations
    ratio = paired_ratio(seconds["with"], seconds["without"])
    medians = {name: statistics.median(found) for name, found in seconds.items()}
    figure = Figure(
        what=f"step time with {EPISODES} held-out episodes every {EVERY} steps, against none",
        asked=f"<= {GOAL} x",
        measured=f"{ratio:.2f} x ({medians['with']:.2f} against {medians['without']:.2f} s)",
        reached=ratio <= GOAL,
        margin=GOAL / ratio,
    )
    return write_result(
        "evaluation_on_the_way", [figure], {"step_seconds": seconds, "evaluations": evaluated}
    )


def _train(client: tg.Client, evaluate: list[EvaluateEvery], steps: int) -> tuple[float, int]:
    """Return the seconds per step, and how many evaluations there were."""
    job = client.train(
        ENVIRONMENT,
        steps=steps,
        algorithm=tg.GRPO(group_size=8, groups_per_step=16, learning_rate=2e-3),
        evaluate=evaluate,
    )
    times = [event.time for event in job.events() if isinstance(event.body, StepEvent)]
    job.wait(progress=False, warn=False)
    return (times[-1] - times[0]) / (len(times) - 1), len(job.evaluations())
