"""The same task as a Gymnasium environment and as an agent program: the same tokens, and the time per step.

    python -m benchmarks agent_program_speed

Jobs alternate, so that both meet the machine's speed of the same minutes.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import httpx
from gymnasium.utils import seeding

import tinkergym as tg
from benchmarks.common import Figure, paired_ratio, service, write_result
from benchmarks.step_work import ANSWER_TOKENS, GROUP_SIZE, GROUPS, Prompts, model_directory, prompt, score
from tinkergym.recording.agent_program import ProgramSession

MOST = 1.15
HTTP = httpx.Client(timeout=120, trust_env=False)


def answer(session: ProgramSession) -> float:
    """Do as `Prompts` does: draw a prompt by the seed, and score the answer."""
    draw, _ = seeding.np_random(session.seed)
    messages = [{"role": "user", "content": prompt(draw.integers(10, size=4).tolist())}]
    reply = HTTP.post(
        f"{session.url()}/chat/completions",
        json={"model": "any", "messages": messages},
        headers={"Authorization": f"Bearer {session.key}"},
    )
    return score(reply.raise_for_status().json()["choices"][0]["message"]["content"])


def measure(pairs: int = 3, steps: int = 8) -> list[Figure]:
    """Train pairs of jobs that differ in how the task is written."""
    seconds: dict[str, list[float]] = {"environment": [], "program": []}
    client_seconds: dict[str, list[float]] = {"environment": [], "program": []}
    tokens: dict[str, list[Any]] = {}
    with (
        model_directory() as model,
        service() as running,
        tg.Client(running.url, running.api_key) as client,
    ):
        for number in range(2 * pairs + 2):  # The first pair loads the model.
            kind, began = ("environment", "program")[number % 2], time.process_time()
            job = _job(client, kind, str(model), number // 2, steps)
            if number > 1:
                seconds[kind].append(statistics.median([step.step_seconds for step in job.steps()][1:]))
                client_seconds[kind].append((time.process_time() - began) / steps)
            tokens[kind] = sorted(
                (one.episode_id.partition(":")[2], [s.token_ids for s in one.trajectory.segments])
                for one in job.episodes(last_step=1)
            )
    ratio = paired_ratio(seconds["program"], seconds["environment"])
    figures = [
        Figure(
            what="a program's step against the same task's as an environment",
            asked=f"at most {MOST} times its time",
            measured=f"{ratio:.2f} times",
            reached=ratio <= MOST,
            margin=MOST / ratio,
        ),
        Figure(
            what="tokens of the first step, as a program and as an environment",
            asked="equal",
            measured="equal" if tokens["program"] == tokens["environment"] else "different",
            reached=tokens["program"] == tokens["environment"],
        ),
    ]
    details = {"step_seconds": seconds, "processor_seconds_of_the_client_per_step": client_seconds}
    write_result("agent_program_speed", figures, details)
    return figures


def _job(client: tg.Client, kind: str, model: str, seed: int, steps: int) -> tg.Job:
    settings: dict[str, Any] = {
        "model": model,
        "seed": seed,
        "steps": steps,
        "sampling": tg.Sampling(max_turn_tokens=ANSWER_TOKENS),
        "algorithm": tg.GRPO(group_size=GROUP_SIZE, groups_per_step=GROUPS, aggregation="sequence"),
    }
    if kind == "program":
        job = client.train_agent(answer, **settings)
    else:
        job = client.train(Prompts, rollout="client", **settings)
    job.wait(progress=False, warn=False)
    return job


if __name__ == "__main__":
    for figure in measure():
        print(figure)
