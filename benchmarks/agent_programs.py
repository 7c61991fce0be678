"""Agent programs as they are: whether they learn, and what recording costs.

    python -m benchmarks.agent_programs --seeds 3 --steps 20

Needs a running service. The program writes a sentence and is paid for a word that it seldom writes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import httpx

import tinkergym as tg
from tinkergym.agent.plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.recording.agent_program import AgentProgram, ProgramSession
from tinkergym.recording.session_server import SessionServer
from tinkergym.rollout.play_list import play
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits
from tinkergym.testing.bundles import byte_bundle
from tinkergym.testing.samplers import RandomTokenSampler

WORDS = ["cat", "dog", "bird", "fish", "horse", "house", "tree", "boat"]
TASKS = {"train": WORDS[:4], "test": WORDS[4:]}
HTTP = httpx.Client(timeout=60.0, trust_env=False)


def asked(text: str) -> list[dict[str, str]]:
    """Return a conversation of one question."""
    return [{"role": "user", "content": text}]


def ask(session: ProgramSession, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Call the policy, as any program calls a model."""
    headers = {"Authorization": f"Bearer {session.key}"}
    body = {"model": "any", "messages": messages, "max_tokens": 32}
    reply = HTTP.post(f"{session.url()}/chat/completions", json=body, headers=headers)
    reply.raise_for_status()
    message: dict[str, Any] = reply.json()["choices"][0]["message"]
    return message


def write(session: ProgramSession) -> float:
    """Write a sentence; it should be about something blue."""
    return float("blue" in ask(session, asked(f"Write a sentence about a {session.task}."))["content"])


def trained(client: tg.Client, seed: int, steps: int, *, control: bool) -> list[float | None]:
    """Return the mean rewards on held-out tasks before and after training."""
    job = client.train_agent(
        write,
        TASKS,
        model="nano-instruct",
        steps=steps,
        seed=seed,
        algorithm=tg.GRPO(group_size=8, groups_per_step=4, learning_rate=3e-3),
        sampling=tg.Sampling(max_turn_tokens=32),
        shuffle_rewards=control,
        evaluate=tg.EvaluateEvery(steps, split="test", samples=16, temperature=1.0),
    )
    job.wait(progress=False, warn=False)
    return [one.mean for one in job.evaluations()]


def overhead(calls: int = 200) -> float:
    """Return the milliseconds of processor time per call, besides sampling; its client's included."""
    renderer = Renderer.from_bundle(byte_bundle(context_length=2**16))

    def talk(session: ProgramSession) -> float:
        for number in range(calls):
            ask(session, asked(f"{number}"))
        return 1.0

    plan = EpisodePlan(
        episode_id="job-0:1:0",
        seed=1,
        policy="p",
        environment=EnvironmentRef(id="local/program/talk-v0"),
        limits=Limits(max_turns=calls),
    )
    server, began = SessionServer(), time.process_time()
    made = AgentProgram(talk, None)
    list(
        play(
            [plan],
            sampler=RandomTokenSampler(256),
            renderer=renderer,
            make_env=lambda _: made,
            recorder=server,
        )
    )
    server.close()
    return 1000 * (time.process_time() - began) / calls


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    chosen = parser.parse_args()
    print(f"recording: {statistics.median(overhead() for _ in range(5)):.2f} ms per call, client included")
    with tg.Client() as client:
        for seed in range(chosen.seeds):
            for control in (False, True):
                began = time.monotonic()
                means = trained(client, seed, chosen.steps, control=control)
                name = "shuffled rewards" if control else "program"
                print(f"seed {seed}, {name}: held out {means}, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
