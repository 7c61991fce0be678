"""Two policies in one job, tic-tac-toe and gomoku: each seat against the other seat's starting policy."""

from __future__ import annotations

import os
from typing import Any

import tinkergym as tg
from benchmarks.common import Figure, service, write_result
from benchmarks.multi_agent import ALGORITHM, HELD_OUT_SEED, curve, described, followed, returns_at
from tinkergym.evaluation.matches import Player

GAMES = {"board/TicTacToe-v0": ("x", "o"), "board/Gomoku-v0": ("black", "white")}
STEPS = int(os.environ.get("TINKERGYM_BENCHMARK_STEPS", "100"))
SEEDS = 400
MINUTES = 10


def measure() -> list[Figure]:
    """Train once per game; the figure is each seat's mean return before and after."""
    figures: list[Figure] = []
    details: dict[str, Any] = {"steps": STEPS, "seeds": SEEDS}
    with service() as running:
        client = tg.Client(running.url, running.api_key)
        for game, agents in GAMES.items():
            job = client.train(
                game,
                steps=STEPS,
                agents={agent: tg.Train() for agent in agents},
                algorithm=ALGORITHM,
                sampling=tg.Sampling(max_turn_tokens=8),
            )
            steps, seconds = followed(job)
            details[game] = {"seconds": seconds} | {
                agent: curve(steps, f"seat/{agent}/reward_mean") for agent in agents
            }
            for agent, other in (agents, agents[::-1]):
                figures.append(_compared(job, game, agent, other, seconds))
        client.close()
    return write_result("two_agents", figures, details)


def _compared(job: tg.Job, game: str, agent: str, other: str, seconds: float) -> Figure:
    seeds = range(HELD_OUT_SEED, HELD_OUT_SEED + SEEDS)
    start = Player(name="start", plays=job.policy(version=0, agent=other))
    (mean0, low0, high0), (mean1, low1, high1) = (
        described(
            returns_at(
                agent,
                {agent: Player(name="own", plays=job.policy(version=version, agent=agent)), other: start},
                game,
                seeds,
            )
        )
        for version in (0, None)
    )
    return Figure(
        what=f"{game}, {agent} against {other}'s start, {SEEDS} seeds, {STEPS} steps",
        asked=f"mean return up, intervals apart, <= {MINUTES} min",
        measured=f"{mean0:.2f} [{low0:.2f}, {high0:.2f}] -> {mean1:.2f} [{low1:.2f}, {high1:.2f}] "
        f"in {seconds:.0f} s",
        reached=low1 > high0 and seconds <= 60 * MINUTES,
    )
