"""Signals: two policies that agree on a code, against one policy whose partner plays randomly.

All train for the same number of steps. The team's return is measured on the same held-out seeds before and
after.
"""

from __future__ import annotations

import os
import statistics
from typing import Any

import tinkergym as tg
from benchmarks.common import Figure, service, write_result
from benchmarks.multi_agent import (
    HELD_OUT_SEED,
    WHOLE,
    curve,
    described,
    followed,
    returns_at,
    warmed_up,
)
from tinkergym.evaluation.matches import Player
from tinkergym.evaluation.statistics import mean_interval
from tinkergym.opponents import Scripted
from tinkergym.schema.jobs.rl import RLSpec

GAME = "tabletop/Signals-v0"
SPEAKER, LISTENER = "speaker", "listener"
OBJECTS = 4
STEPS = int(os.environ.get("TINKERGYM_BENCHMARK_STEPS", "100"))
SEEDS = 400
TEAMS: dict[str, dict[str, Any]] = {
    "both learn": {SPEAKER: tg.Train(), LISTENER: tg.Train()},
    "the speaker plays at random": {SPEAKER: Scripted("random"), LISTENER: tg.Train()},
    "the listener plays at random": {SPEAKER: tg.Train(), LISTENER: Scripted("random")},
}


def measure() -> list[Figure]:
    """Train each team once; the figures are the gains in the team's mean return."""
    gains: dict[str, list[float]] = {}
    details: dict[str, Any] = {"steps": STEPS, "seeds": SEEDS, "objects": OBJECTS}
    with service() as running, tg.Client(running.url, running.api_key) as client:
        begun = warmed_up(client, GAME, objects=OBJECTS)
        for name, agents in TEAMS.items():
            job = client.train(
                GAME,
                env_kwargs={"objects": OBJECTS},
                steps=STEPS,
                agents=agents,
                adapter=WHOLE,
                initial_policy=begun.id,
                algorithm=tg.GRPO(
                    group_size=8,
                    groups_per_step=16,
                    learning_rate=5e-4,
                    lr_schedule="linear",
                    entropy_coefficient=0.02,
                ),
                sampling=tg.Sampling(max_turn_tokens=8),
            )
            steps, seconds = followed(job)
            before, after = (_returns(one, agents) for one in (begun, job))
            gains[name] = [late - early for early, late in zip(before, after, strict=True)]
            agent = next(agent for agent, seat in agents.items() if isinstance(seat, tg.Train))
            details[name] = {
                "seconds": seconds,
                "before": described(before),
                "after": described(after),
                "curve": curve(steps, f"seat/{agent}/reward_mean")
                or [round(step.reward_mean or 0.0, 4) for step in steps],
            }
            print(name, details[name]["before"], details[name]["after"], f"{seconds:.0f} s", flush=True)
    figures = _figures(gains, details)
    return write_result("cooperative", figures, details)


def _returns(job: tg.Job, agents: dict[str, Any]) -> list[float]:
    """Return the team's returns, the seats that learn played by a job's policies, or by its only one."""
    only = not isinstance(job.spec, RLSpec)
    seats = {
        agent: Player(name=f"own {agent}", plays=job.policy(agent="" if only else agent))
        if isinstance(seat, tg.Train)
        else Player(name="random", plays="random")
        for agent, seat in agents.items()
    }
    seeds = range(HELD_OUT_SEED, HELD_OUT_SEED + SEEDS)
    return returns_at(SPEAKER, seats, GAME, seeds, objects=OBJECTS)


def _figures(gains: dict[str, list[float]], details: dict[str, Any]) -> list[Figure]:
    intervals = {name: mean_interval(some) for name, some in gains.items()}
    means = {name: statistics.fmean(some) for name, some in gains.items()}
    both, *others = TEAMS
    before, after = details[both]["before"], details[both]["after"]
    rises = Figure(
        what=f"cooperative game, both agents learn, team return on {SEEDS} seeds, {STEPS} steps",
        asked="rises, intervals apart",
        measured=f"{before[0]:.2f} [{before[1]:.2f}, {before[2]:.2f}] -> "
        f"{after[0]:.2f} [{after[1]:.2f}, {after[2]:.2f}] in {details[both]['seconds']:.0f} s",
        reached=after[1] > before[2],
    )
    less = Figure(
        what="cooperative game, one seat frozen at random, gain in team return",
        asked="less than where both learn, intervals apart",
        measured="; ".join(
            f"{name} {means[name]:+.2f} [{low:+.2f}, {high:+.2f}]" for name, (low, high) in intervals.items()
        ),
        reached=all(intervals[name][1] < intervals[both][0] for name in others),
    )
    return [rises, less]
