"""Agent programs as they are: whether they learn, and what recording costs.

    python -m benchmarks agent_programs

The program writes a sentence and is paid for a word that it seldom writes.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import httpx

import tinkergym as tg
from benchmarks.common import Figure, service, write_result
from tinkergym.agent.episode_plan import EpisodePlan
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


def measure(seeds: int = 3, steps: int = 20) -> list[Figure]:
    """Measure the recorder, then train each seed with its rewards and with shuffled ones."""
    milliseconds = statistics.median(overhead() for _ in range(5))
    means: dict[str, list[list[float | None]]] = {"program": [], "shuffled rewards": []}
    longest = 0.0
    with service() as running, tg.Client(running.url, running.api_key) as client:
        for seed in range(seeds):
            for name, found in means.items():
                began = time.monotonic()
                found.append(trained(client, seed, steps, control=name != "program"))
                longest = max(longest, time.monotonic() - began)
                print(f"seed {seed}, {name}: held out {found[-1]}", flush=True)
    rises = {
        name: [(last or 0.0) - (first or 0.0) for first, *_, last in found] for name, found in means.items()
    }
    figures = [
        Figure(
            what="recording a call of a program, its client included",
            asked="at most 3 ms of processor time",
            measured=f"{milliseconds:.2f} ms",
            reached=milliseconds <= 3,
            margin=3 / milliseconds,
        ),
        Figure(
            what="an unmodified program on held-out tasks, and with shuffled rewards",
            asked="rises with each seed, and by less than 0.1 with shuffled rewards; at most 6 minutes each",
            measured=f"{_signed(rises['program'])}; {_signed(rises['shuffled rewards'])}; {longest:.0f} s",
            reached=min(rises["program"]) > 0.2 and max(rises["shuffled rewards"]) < 0.1 and longest <= 360,
        ),
    ]
    write_result("agent_programs", figures, {"held_out_means": means})
    return figures


def _signed(rises: list[float]) -> str:
    return ", ".join(f"{rise:+.2f}" for rise in rises)


if __name__ == "__main__":
    for figure in measure():
        print(figure)
