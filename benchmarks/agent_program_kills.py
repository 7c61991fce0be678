"""Agent programs that are killed in mid-session, or whose service or client is: each episode counts once.

In each step one process is killed with -9 while a program waits for its second call: a part of the service,
the program, or the client that plays. What the calls got is compared with what is stored.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import httpx

import tinkergym as tg
from benchmarks.common import Figure, Service, service, write_result
from benchmarks.determinism import kill_if_there
from tinkergym.recording.agent_program import Play, ProgramSession, Rewards
from tinkergym.recording.command_program import CommandProgram

KILLS = 10
VICTIMS = ("gateway", "pool worker", "program", "client")
GROUP = 4
PROGRAM = """
import os, sys
from benchmarks.agent_program_kills import ask
url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
talk = [{"role": "user", "content": "Say a"}]
talk += [ask(url, key, talk), {"role": "user", "content": "Again"}]
if sys.argv[1:] == ["dies"]:
    os.kill(os.getpid(), 9)
print(len(str(ask(url, key, talk)["content"])) % 3)
"""


def measure(kills: int = KILLS, victims: tuple[str, ...] = VICTIMS) -> list[Figure]:
    """Train one job per victim, with a kill in each of its steps."""
    figures = []
    for victim in victims:
        state, played, twice, failed = _train(victim, kills)
        figures.append(
            Figure(
                what=f"sessions of a program, the {victim} killed {kills} times in mid-session",
                asked="the job completes, no episode counts twice, a killed program's has failed",
                measured=f"{state}; {played} of {kills * GROUP} episodes, {twice} twice, {failed} failed",
                reached=state == "completed"
                and played == kills * GROUP
                and not twice
                and failed == (kills if victim == "program" else 0),
            )
        )
    return write_result("agent_program_kills", figures, {})


def _train(victim: str, kills: int) -> tuple[str, int, int, int]:
    with (
        service() as running,
        tg.Client(running.url, running.api_key, patience_seconds=120) as client,
        tempfile.TemporaryDirectory() as folder,
    ):
        if victim == "client":
            job = _played_by_dying_clients(client, running, Path(folder), kills)
        else:
            job = _start(client, _program(victim, running, Path(folder)), kills)
        state = str(job.wait(progress=False, warn=False).state)
        episodes = [one.episode_id for one in job.episodes()]
        failed = sum(not one.completed for one in job.episodes())
        return state, len(set(episodes)), len(episodes) - len(set(episodes)), failed


def _start(client: tg.Client, program: Play, steps: int, *, client_timeout_seconds: float = 120.0) -> tg.Job:
    return client.train_agent(
        program,
        model="nano",
        steps=steps,
        algorithm=tg.GRPO(group_size=GROUP, groups_per_step=1),
        sampling=tg.Sampling(max_turn_tokens=8, temperature=3.0),
        max_failed_fraction=1.0,
        client_timeout_seconds=client_timeout_seconds,
    )


def _played_by_dying_clients(client: tg.Client, running: Service, folder: Path, steps: int) -> tg.Job:
    """Start one client after the other until none dies any more."""
    command = [sys.executable, "-m", "benchmarks.agent_program_kills", str(folder), str(steps)]
    while subprocess.run(command, env=os.environ | running.environment, check=False).returncode:
        print("client killed", flush=True)
    return client.job((folder / "job").read_text())


def _play_as_client(folder: Path, steps: int) -> None:
    """Start the job, or go on with the one that an earlier client has started."""
    program, known = _program("client", None, folder), folder / "job"
    with tg.Client() as client:
        if known.exists():
            job = client.attach_agent(known.read_text(), program)
        else:
            job = _start(client, program, steps, client_timeout_seconds=5.0)
            known.write_text(job.id)
        job.wait(progress=False, warn=False)


def _program(victim: str, running: Service | None, folder: Path) -> Play:
    """Return a program of two calls, between which the victim dies once per step."""
    numbers, lock = itertools.count(), threading.Lock()

    def play(session: ProgramSession) -> Rewards:
        with lock:
            # The episodes of a step have one seed, also when they are issued again to another client.
            number, struck = next(numbers), folder / str(session.seed)
            is_first = not struck.exists()
            struck.touch()
        if victim == "program":
            command = [sys.executable, "-c", PROGRAM, "dies" if is_first else ""]
            reward: Rewards = CommandProgram(command)(session)
            return reward
        talk: list[dict[str, Any]] = [{"role": "user", "content": f"Say {number % 7}"}]
        talk += [ask(session.url(), session.key, talk), {"role": "user", "content": "Again"}]
        if is_first and running is None:
            os.kill(os.getpid(), 9)
        if is_first and running is not None and kill_if_there(running, victim):
            print(f"{victim} killed in session {number}", flush=True)
        return float(len(str(ask(session.url(), session.key, talk)["content"])) % 3)

    return play


def ask(url: str, key: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Call the policy, as any program calls a model."""
    headers = {"Authorization": f"Bearer {key}"}
    body = {"model": "any", "messages": messages}
    reply = httpx.post(f"{url}/chat/completions", json=body, headers=headers, timeout=120, trust_env=False)
    reply.raise_for_status()
    message: dict[str, Any] = reply.json()["choices"][0]["message"]
    return message


def main() -> None:
    """Measure; or, with a folder and a number of steps, play as a client that dies."""
    if len(sys.argv) == 3:
        _play_as_client(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        for figure in measure():
            print(figure)


if __name__ == "__main__":
    main()
