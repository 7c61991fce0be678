"""Agent programs whose service is killed in mid-session: each episode counts once, and the job goes on.

In each step a process of the service is killed with -9 while a program waits for its second call. What the
calls got is compared with what is stored.
"""

from __future__ import annotations

import itertools
import threading
from typing import Any

import httpx

import tinkergym as tg
from benchmarks.common import Figure, service, write_result
from benchmarks.determinism import kill_if_there
from tinkergym.recording.agent_program import ProgramSession

KILLS = 10
VICTIMS = ("gateway", "pool worker")
GROUP = 4


def measure(kills: int = KILLS) -> list[Figure]:
    """Train one job per victim, with a kill in each of its steps."""
    figures = []
    for victim in VICTIMS:
        state, played, twice, failed = _train(victim, kills)
        figures.append(
            Figure(
                what=f"sessions of a program, the {victim} killed {kills} times in mid-session",
                asked="the job completes, and no episode counts twice",
                measured=f"{state}; {played} of {kills * GROUP} episodes, {twice} twice, {failed} failed",
                reached=state == "completed" and played == kills * GROUP and not twice,
            )
        )
    return write_result("agent_program_kills", figures, {})


def _train(victim: str, kills: int) -> tuple[str, int, int, int]:
    numbers, lock, struck = itertools.count(), threading.Lock(), set[int]()
    with service() as running, tg.Client(running.url, running.api_key, patience_seconds=120) as client:

        def play(session: ProgramSession) -> float:
            with lock:
                number, is_first = next(numbers), session.seed not in struck
                struck.add(
                    session.seed
                )  # The episodes of a step have one seed, also when they are issued again.
            talk: list[dict[str, Any]] = [{"role": "user", "content": f"Say {number % 7}"}]
            talk += [_ask(session, talk), {"role": "user", "content": "Again"}]
            if is_first and kill_if_there(running, victim):
                print(f"{victim} killed in session {number}", flush=True)
            return float(len(str(_ask(session, talk)["content"])) % 3)

        job = client.train_agent(
            play,
            model="nano",
            steps=kills,
            algorithm=tg.GRPO(group_size=GROUP, groups_per_step=1),
            sampling=tg.Sampling(max_turn_tokens=8, temperature=3.0),
            max_failed_fraction=1.0,
        )
        state = str(job.wait(progress=False, warn=False).state)
        episodes = [one.episode_id for one in job.episodes()]
        failed = sum(not one.completed for one in job.episodes())
        return state, len(set(episodes)), len(episodes) - len(set(episodes)), failed


def _ask(session: ProgramSession, messages: list[dict[str, Any]]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {session.key}"}
    body = {"model": "any", "messages": messages}
    reply = httpx.post(
        f"{session.url()}/chat/completions", json=body, headers=headers, timeout=120, trust_env=False
    )
    reply.raise_for_status()
    message: dict[str, Any] = reply.json()["choices"][0]["message"]
    return message


if __name__ == "__main__":
    for figure in measure():
        print(figure)
