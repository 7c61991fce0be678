"""From `tinkergym serve` in an empty folder to the first response, and to the end of the first step."""

from __future__ import annotations

import statistics
import time

import tinkergym as tg
from benchmarks.common import Figure, service, write_result


def measure(runs: int = 3) -> list[Figure]:
    """Start `runs` services one after the other; the job is submitted as soon as the gateway responds."""
    answer, first_step = [], []
    for _ in range(runs):
        with service() as running:
            answer.append(time.perf_counter() - running.started_at)
            client = tg.Client(running.url, running.api_key)
            job = client.train(
                "board/TicTacToeVs-v0", steps=1, algorithm=tg.GRPO(group_size=8, groups_per_step=16)
            )
            for event in job.events():
                if event.body.type == "step":
                    first_step.append(time.perf_counter() - running.started_at)
            client.close()
    figures = [
        Figure(
            what="cold `tinkergym serve` until it answers",
            asked="<= 10 s",
            measured=f"{statistics.median(answer):.1f} s (worst of {runs}: {max(answer):.1f})",
            reached=max(answer) <= 10,
        ),
        Figure(
            what="cold `tinkergym serve` until the first train step is done",
            asked="<= 30 s",
            measured=f"{statistics.median(first_step):.1f} s (worst of {runs}: {max(first_step):.1f})",
            reached=len(first_step) == runs and max(first_step) <= 30,
        ),
    ]
    return write_result("cold_start", figures, {"answer_seconds": answer, "first_step_seconds": first_step})
