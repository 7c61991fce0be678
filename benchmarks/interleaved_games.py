"""Sampled tokens/s of 64 games of two policies, against 64 episodes of one seat and a script.

Both use the same game, engine and model. In a game only one seat moves at a time, so 64 games keep as many
requests in progress as 64 episodes do. In both, half of the requests use one adapter and half the other,
because the cost of two adapters in an engine is not the cost of games. Episodes with a single adapter are
measured too, for the details.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from backend.catalog.models import load_renderer_bundle
from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.learner.learner import Learner
from benchmarks.bench_engine import NANO
from benchmarks.common import Figure, paired_ratio, write_result
from benchmarks.multi_turn import EngineSampler
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.registration.games import make_playable
from tinkergym.rollout.player import EpisodePlayer
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits, LoRA

EPISODES = 64
ROUNDS = 7
MAX_TURN_TOKENS = 8
ASKED = 0.9
SEATS = ("x", "o")
KINDS = ("games", "alone", "one adapter")
# An untrained model makes few legal moves; illegal ones are replaced, so that games last.
GAME = EnvironmentRef(id="board/TicTacToe-v0", kwargs={"on_illegal": "random"})
ALONE = EnvironmentRef(id="board/TicTacToeVs-v0", kwargs={"on_illegal": "random"})


def measure() -> list[Figure]:
    """Play all alternately, each round with new seeds, and compare within the rounds."""
    engine = TransformersEngine(NANO)
    learner = Learner(NANO)
    for number, agent in enumerate(SEATS):
        learner.create_policy(agent, LoRA(rank=8), seed=number)
        engine.publish(agent, 1, learner.weights(agent))
    renderer = Renderer.from_bundle(load_renderer_bundle("nano", NANO))
    player = EpisodePlayer(sampler=EngineSampler(engine), make_env=make_playable)
    speeds: dict[str, list[float]] = {what: [] for what in KINDS}
    tokens: dict[str, list[int]] = {what: [] for what in KINDS}
    for number in range(ROUNDS + 1):
        for what in KINDS:
            plans = [_plan(what, number, episode) for episode in range(EPISODES)]
            began = time.perf_counter()
            sampled = _played(player, renderer, plans)
            seconds = time.perf_counter() - began
            if number:  # the first is a warm-up
                speeds[what].append(sampled / seconds)
                tokens[what].append(sampled)
    player.close()
    engine.close()
    ratio = paired_ratio(speeds["games"], speeds["alone"])
    figure = Figure(
        what=f"{EPISODES} interleaved games of two policies against {EPISODES} episodes with one seat of the "
        "same two, tic-tac-toe",
        asked=f">= {ASKED} x the sampled tokens/s",
        measured=f"{ratio:.2f} x ({max(speeds['games']):,.0f} against {max(speeds['alone']):,.0f} at best)",
        reached=ratio >= ASKED,
        margin=ratio / ASKED,
    )
    details = {
        "tokens_per_second": speeds,
        "sampled_tokens": tokens,
        "threads": torch.get_num_threads(),
        "against_one_adapter": paired_ratio(speeds["games"], speeds["one adapter"]),
    }
    return write_result("interleaved_games", [figure], details)


def _plan(what: str, number: int, episode: int) -> EpisodePlan:
    first = EpisodePlan(
        episode_id=f"{what}-{number}-{episode}",
        seed=1000 * number + episode,
        policy=SEATS[episode % 2 if what == "alone" else 0],
        policy_version=1,
        environment=GAME if what == "games" else ALONE,
        decoding=Decoding(max_turn_tokens=MAX_TURN_TOKENS, seed=10_000 * number + 100 * episode),
        limits=Limits(max_turns=16),
    )
    if what != "games":
        return first
    decoding = first.decoding.with_options(seed=first.decoding.seed + 1_000_000)
    other = replace(first, policy=SEATS[1], agent=SEATS[1], seat=1, decoding=decoding)
    return replace(first, agent=SEATS[0], others=(other,))


def _played(player: EpisodePlayer, renderer: Renderer, plans: list[EpisodePlan]) -> int:
    for plan in plans:
        player.start(plan, renderer)
    results = []
    while player.active:
        results += player.poll(1.0)
    records = [record for result in results for record in result.trajectories]
    assert all(record.completed for record in records), "an episode failed"
    return sum(record.sampled_tokens for record in records)
