"""Sampled tokens per second through the agent loop, against the bare engine on the same token counts.

Guess-the-number, 64 episodes at once. The loop renders, samples, decodes, steps environments and keeps the
ledger; the bare engine gets the loop's prompts, each as soon as the previous answer is there, and samples as
many tokens.

nano does not know this game: it is first taught, from games of random guesses, to answer with a number. It
therefore guesses badly, but legally, and an episode has several turns.
"""

from __future__ import annotations

import queue
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence

import torch

from backend.catalog.models import load_renderer_bundle
from backend.compute.device_lock import release_openmp_threads
from backend.compute.weights import PolicyWeights
from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.jobs.dataset_records import train_sequence, written
from backend.learner.learner import Learner
from backend.learner.sequences import TrainSequence
from backend.learner.token_loss import likelihood_loss
from backend.workers.pool_worker import SWITCH_SECONDS
from benchmarks.bench_engine import NANO
from benchmarks.common import Figure, paired_ratio, write_result
from tinkergym.agent.episode_plan import EpisodePlan
from tinkergym.agent.renderer import Renderer
from tinkergym.agent.sampler import Deliver
from tinkergym.datasets.marked_tokens import conversation_tokens
from tinkergym.errors import from_wire
from tinkergym.games.against_opponent import AgainstOpponent
from tinkergym.messages import Message
from tinkergym.registration.environments import make_environment
from tinkergym.rollout.executors import Executor, InlineExecutor
from tinkergym.rollout.player import EpisodePlayer
from tinkergym.schema.decoding import Decoding
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits, LoRA
from tinkergym.schema.sampling import Completion, SampleFailure, SampleRequest

ENVIRONMENT = "games/GuessNumber-v0"
EPISODES = 64
MAX_TURNS = 5
MAX_TURN_TOKENS = 16
RUNS = 15
ASKED = 0.85
PLACES: dict[str, Executor | None] = {
    "environments in threads, as by default": None,
    "environments inline (InlineExecutor)": InlineExecutor(),
}
"""Where the environments run: by default, and in the fastest way for fast ones."""

LESSON_GAMES = 64
LESSONS = 60
LESSON_RATE = 1e-2
LESSON_SEEDS = 1_000_000

Turn = tuple[SampleRequest, int]
"""What was requested, and the number of tokens of the answer."""


class RecordingSampler:
    """Passes requests to an engine and records their answers."""

    def __init__(self, engine: TransformersEngine) -> None:
        self._engine = engine
        self._asked: dict[str, SampleRequest] = {}
        self.turns: dict[str, list[Turn]] = defaultdict(list)
        """By session, in order."""

    def submit(self, requests: Sequence[SampleRequest], deliver: Deliver) -> None:
        """Pass on."""
        self._asked |= {request.request_id: request for request in requests}

        def noted(answers: Sequence[Completion | SampleFailure]) -> None:
            for answer in answers:
                request = self._asked.pop(answer.request_id)
                if isinstance(answer, Completion):
                    self.turns[request.session_id].append((request, len(answer.token_ids)))
            deliver(answers)

        self._engine.submit(requests, noted)

    def close(self) -> None:
        """The engine belongs to its owner."""


class EngineSampler:
    """Passes requests to an engine."""

    def __init__(self, engine: TransformersEngine) -> None:
        self.submit = engine.submit

    def close(self) -> None:
        """The engine belongs to its owner."""


def measure() -> list[Figure]:
    """Alternate both, with a new policy version each time, so that no cache helps; compare pair by pair."""
    sys.setswitchinterval(SWITCH_SECONDS)
    engine = TransformersEngine(NANO)
    renderer = Renderer.from_bundle(load_renderer_bundle("nano", NANO))
    weights = _taught(renderer)
    version = 0
    engine.publish("bench", version, weights)
    recording = RecordingSampler(engine)
    _play(EpisodePlayer(sampler=recording, make_env=make_environment), renderer, version)
    turns = list(recording.turns.values())
    tokens = sum(count for episode in turns for _, count in episode)
    asked = sum(map(len, turns))
    assert asked >= 3 * EPISODES, f"{asked} turns of {EPISODES} episodes are not what this measures"
    # One player for all runs, like in a rollout worker: its environments are created once.
    players = {
        place: EpisodePlayer(sampler=EngineSampler(engine), make_env=make_environment, executor=executor)
        for place, executor in PLACES.items()
    }
    loop_seconds: dict[str, list[float]] = {place: [] for place in players}
    bare_seconds: list[float] = []
    for run in range(RUNS + 1):
        for place, player in players.items():
            engine.publish("bench", version := version + 1, weights)
            began = time.perf_counter()
            sampled = _play(player, renderer, version)
            loop_seconds[place].append(time.perf_counter() - began)
            assert sampled == tokens, f"the loop sampled {sampled} tokens, not {tokens}"
        engine.publish("bench", version := version + 1, weights)
        began = time.perf_counter()
        _replay(engine, turns, version)
        bare_seconds.append(time.perf_counter() - began)
        if run == 0:  # warms up
            for seconds in (*loop_seconds.values(), bare_seconds):
                seconds.clear()
    for player in players.values():
        player.close()
    engine.close()
    bare = tokens / statistics.median(bare_seconds)
    figures = []
    for place, seconds in loop_seconds.items():
        through_loop, ratio = tokens / statistics.median(seconds), paired_ratio(bare_seconds, seconds)
        figures.append(
            Figure(
                what=f"agent loop against the bare engine, {EPISODES} episodes of {ENVIRONMENT}, {place}",
                asked=f">= {ASKED} x",
                measured=f"{ratio:.2f} x ({through_loop:,.0f} against {bare:,.0f} sampled tokens/s, "
                f"{asked} turns)",
                reached=ratio >= ASKED,
                margin=ratio / ASKED,
            )
        )
    details = {
        "turns": asked,
        "switch_seconds": SWITCH_SECONDS,
        "sampled_tokens": tokens,
        "loop_seconds": loop_seconds,
        "bare_seconds": bare_seconds,
        "threads": torch.get_num_threads(),
    }
    return write_result("multi_turn", figures, details)


def _taught(renderer: Renderer) -> PolicyWeights:
    learner = Learner(NANO)
    learner.create_policy("bench", LoRA(rank=16), seed=0)
    games = [_random_game(renderer, seed) for seed in range(LESSON_GAMES)]
    for epoch in range(LESSONS):
        learner.forward_backward("bench", games, likelihood_loss())
        learner.optim_step("bench", learning_rate=LESSON_RATE * (1 - epoch / LESSONS))
    release_openmp_threads()  # otherwise this thread's load would slow down the engine
    return learner.weights("bench")


def _random_game(renderer: Renderer, seed: int) -> TrainSequence:
    env = make_environment(EnvironmentRef(id=ENVIRONMENT))
    game = env.unwrapped
    assert isinstance(game, AgainstOpponent)
    draw = random.Random(seed)
    observation, _ = env.reset(seed=LESSON_SEEDS + seed)
    messages: list[Message] = []
    over = False
    while not over:
        messages.append({"role": "user", "content": observation})
        legal = game.legal_actions()
        assert legal is not None
        guess = draw.choice(legal)
        messages.append({"role": "assistant", "content": guess})
        observation, _, terminated, truncated, _ = env.step(guess)
        over = terminated or truncated
    env.close()
    return train_sequence(written(conversation_tokens(renderer, messages)))


def _play(player: EpisodePlayer, renderer: Renderer, version: int) -> int:
    for number in range(EPISODES):
        player.start(
            EpisodePlan(
                episode_id=f"{version}-{number}",
                seed=number,
                policy="bench",
                policy_version=version,
                environment=EnvironmentRef(id=ENVIRONMENT),
                decoding=Decoding(max_turn_tokens=MAX_TURN_TOKENS, seed=1000 * number),
                limits=Limits(max_turns=MAX_TURNS),
            ),
            renderer,
        )
    results = []
    while player.active:
        results += player.poll(1.0)
    assert all(result.trajectory.completed for result in results), "an episode failed"
    return sum(result.trajectory.sampled_tokens for result in results)


def _replay(engine: TransformersEngine, turns: list[list[Turn]], version: int) -> None:
    answered: queue.SimpleQueue[Sequence[Completion | SampleFailure]] = queue.SimpleQueue()
    done = [0] * len(turns)

    def request(episode: int) -> SampleRequest:
        asked, count = turns[episode][done[episode]]
        update = {
            "request_id": str(episode),
            "policy_version": version,
            "max_tokens": count,
            "stop_ids": [],
            "session_id": f"{version}-{episode}",
        }
        return asked.model_copy(update=update)

    engine.submit([request(episode) for episode in range(len(turns))], answered.put)
    playing = len(turns)
    while playing:
        onward = []
        for answer in answered.get():
            if not isinstance(answer, Completion):
                raise from_wire(answer.error.model_dump())
            episode = int(answer.request_id)
            done[episode] += 1
            if done[episode] == len(turns[episode]):
                playing -= 1
            else:
                onward.append(request(episode))
        if onward:
            engine.submit(onward, answered.put)
