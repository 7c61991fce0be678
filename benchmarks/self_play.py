"""Self-play tic-tac-toe with and without anchors: the score against a random player over the steps.

Versions of the first job with anchors play each other; the pictures of docs/guides/ratings.md show it.
"""

from __future__ import annotations

import os
import statistics
from typing import Any

import tinkergym as tg
from benchmarks.common import Figure, service, write_result
from benchmarks.game_pictures import IMAGES
from benchmarks.multi_agent import ALGORITHM, HELD_OUT_SEED, followed, returns_at
from tinkergym.evaluation.matches import Player
from tinkergym.opponents import League, Scripted

GAME, SEATS = "board/TicTacToe-v0", ("x", "o")
STEPS = int(os.environ.get("TINKERGYM_BENCHMARK_STEPS", "300"))
SEEDS = 3
JOB_SEEDS = int(os.environ.get("TINKERGYM_BENCHMARK_SEEDS", SEEDS))
EVERY = 20
GAMES = 100
"""Per seat and version."""
LEAGUES = {
    "anchors": League(anchors=[Scripted("random")], snapshot_every=EVERY),
    "mirror only": League(anchors=[], anchor_share=0, current_share=1),
}


def measure() -> list[Figure]:
    """Train with each league and seed; the figure is the largest fall below the best score so far."""
    curves: dict[str, list[list[float]]] = {name: [] for name in LEAGUES}
    seconds: list[float] = []
    with service() as running:
        client = tg.Client(running.url, running.api_key)
        for seed in range(JOB_SEEDS):
            for name, league in LEAGUES.items():
                job = client.train(
                    GAME,
                    steps=STEPS,
                    self_play=league,
                    algorithm=ALGORITHM,
                    sampling=tg.Sampling(max_turn_tokens=8),
                    checkpoint_every=EVERY,
                    keep_checkpoints=1000,
                    seed=seed,
                )
                seconds.append(followed(job)[1])
                versions = sorted({0, *(view.policy_version for view in job.checkpoints())})
                curves[name].append([_score(job, version) for version in versions])
                if len(seconds) == 1:
                    _draw_matches(job)
        client.close()
    falls = {name: max(_fall(scores) for scores in of) for name, of in curves.items()}
    seeds = f"{JOB_SEEDS} seed{'s' * (JOB_SEEDS > 1)}"
    figure = Figure(
        what=f"self-play tic-tac-toe, {STEPS} steps, {seeds}, score against random",
        asked="once above 0.5 never more than 0.15 below its best",
        measured=f"largest fall {falls['anchors']:.2f}, mirror only {falls['mirror only']:.2f}; last scores "
        + ", ".join(f"{name} {statistics.fmean(one[-1] for one in of):.2f}" for name, of in curves.items()),
        reached=falls["anchors"] <= 0.15 and all(max(one) > 0.5 for one in curves["anchors"]),
    )
    details: dict[str, Any] = {"every": EVERY, "games_per_seat": GAMES, "curves": curves, "seconds": seconds}
    limit = "" if JOB_SEEDS == SEEDS else f"TINKERGYM_BENCHMARK_SEEDS={JOB_SEEDS} "
    return write_result("self_play", [figure], details, command=f"{limit}python -m benchmarks self_play")


def _draw_matches(job: tg.Job) -> None:
    found = job.crossplay(against=["random", "heuristic"], pairs=50, progress=False)
    found.to_png(IMAGES / "self_play_crossplay.png")
    found.ratings().to_png(IMAGES / "self_play_ratings.png")


def _score(job: tg.Job, version: int) -> float:
    own, rival = Player(name="own", plays=job.policy(version=version)), Player(name="random", plays="random")
    seeds = range(HELD_OUT_SEED, HELD_OUT_SEED + GAMES)
    earned = [
        one
        for agent, other in (SEATS, SEATS[::-1])
        for one in returns_at(agent, {agent: own, other: rival}, GAME, seeds)
    ]
    return round(statistics.fmean(earned), 4)


def _fall(scores: list[float]) -> float:
    """Return how far the score fell below its best once that was above 0.5."""
    best, worst = 0.5, 0.0
    for score in scores:
        best = max(best, score)
        if best > 0.5:
            worst = max(worst, best - score)
    return worst
