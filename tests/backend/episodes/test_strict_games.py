"""Strict mode over random games: whatever is late, fails or ends early, each game is one version's, in order.

The games are played as in a job: requests from the job's settings, leases from its board, tokens from an
engine that others publish to, and results taken in by the board.
"""

from __future__ import annotations

import queue
import threading

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.compute.weights import FullWeights
from backend.engines.scripted.scripted_engine import ScriptedEngine
from backend.episodes.episode_board import EpisodeBoard
from backend.episodes.episode_requests import step_requests
from backend.episodes.played import is_lost
from tests.tinkergym.rollout.random_games import RandomGame
from tinkergym.agent.renderer import Renderer
from tinkergym.algorithms import GRPO
from tinkergym.errors import ServiceUnavailableError
from tinkergym.rollout.executors import InlineExecutor, ThreadExecutor
from tinkergym.rollout.play_list import play
from tinkergym.schema.events import ErrorView
from tinkergym.schema.ids import policy_of
from tinkergym.schema.jobs.parts import EnvironmentRef, Sampling
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import Train
from tinkergym.schema.sampling import SampleFailure
from tinkergym.testing import byte_bundle
from tinkergym.trajectory.trajectory import COMPLETED_REASONS

RENDERER = Renderer.from_bundle(byte_bundle())
NOTHING = FullWeights(tensors={})
STEPS = 2


class LateSampler:
    """Hands requests to the engine one by one, in any order, and now and then publishes or fails instead."""

    def __init__(self, engine, rng, publish, *, fails):
        self._engine, self._rng, self._publish, self._fails = engine, rng, publish, fails
        self._asked = queue.SimpleQueue()
        self.order = []
        """Requests in the order in which they were made."""
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def submit(self, requests, deliver):
        for request in requests:
            self.order.append(request)
            self._asked.put((request, deliver))

    def close(self):
        self._asked.put(None)
        self._thread.join()

    def _serve(self):
        waiting = []
        while True:
            if not waiting:
                waiting.append(self._asked.get())
            while not self._asked.empty():
                waiting.append(self._asked.get())
            if None in waiting:
                return
            request, deliver = waiting.pop(int(self._rng.integers(len(waiting))))
            chance = self._rng.random()
            if chance < self._fails:
                error = ErrorView.model_validate(ServiceUnavailableError("away").to_wire())
                deliver([SampleFailure(request_id=request.request_id, error=error)])
                continue
            if chance > 0.97:
                self._publish()
            self._engine.submit([request], deliver)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    players=st.integers(2, 4),
    leave=st.floats(0, 0.4),
    fails=st.sampled_from([0.0, 0.05, 0.2]),
    hasty=st.booleans(),
    threads=st.booleans(),
)
def test_keeps_turns_ordered_and_one_policy_version_per_game(seed, players, leave, fails, hasty, threads):
    agents = [f"p{number}" for number in range(players)]
    spec = RLSpec(
        environment=EnvironmentRef(id="test/random"),
        agents={agent: Train() for agent in agents},
        algorithm=GRPO(group_size=2, groups_per_step=2),
        sampling=Sampling(max_turn_tokens=3),
        on_failure="retry:1",
        steps=STEPS,
        seed=seed,
    )
    rng = np.random.default_rng(seed)
    policies = [policy_of("job-1", agent) for agent in agents]
    engine = ScriptedEngine(
        lambda request: RENDERER.encode_answer(letter_of(request.policy.rpartition("/")[2]))
    )
    newest = dict.fromkeys(policies, 0)

    def publish_one():
        """Publish what no game has asked for yet, as a learner that did not wait would."""
        if hasty:
            policy = str(rng.choice(policies))
            newest[policy] += 1
            engine.publish(policy, newest[policy], NOTHING)

    board = EpisodeBoard(lease_seconds=60.0)
    for step in range(1, STEPS + 1):
        for policy in policies:
            newest[policy] = step - 1
            engine.publish(policy, step - 1, NOTHING)
        board.post(step, step_requests("job-1", spec, step))
        games, late = [], []
        for worker in ("dies", "lives"):
            sampler = LateSampler(engine, rng, publish_one, fails=fails)
            for result in play(
                board.lease(worker, 100, 0.0),
                sampler=sampler,
                renderer=RENDERER,
                make_env=lambda ref, games=games: RandomGame(players, leave=leave, played=games),
                executor=ThreadExecutor() if threads else InlineExecutor(),
            ):
                if worker == "dies" and rng.random() < 0.3:
                    late.append(result)
                else:
                    hand_in(board, result)
            sampler.close()
            board.forget_worker(worker)
        # What a dead worker still hands in counts for nothing: another one has played it.
        assert {board.claim(result) for result in late} <= {"stale", "duplicate"}
        check_step(board, step, games)
    engine.close()


def letter_of(agent):
    """Return what an agent's policy answers with."""
    return "ABCD"[int(agent.removeprefix("p"))]


def hand_in(board, result):
    board.check(result)  # refuses tokens of any version but the one that the step asks for
    assert board.claim(result) == "accepted"
    board.settle(result, stored=True)


def check_step(board, step, games):
    assert board.unfinished(step) == 0
    for _, result in board.results(step):
        for record in result.trajectories:
            # One version of a policy in all of a game, and it is the one that the step asks for.
            assert {turn.policy_version for turn in record.turns} <= {step - 1}
        if not is_lost(result):
            assert {one.stop_reason for one in result.trajectories} <= COMPLETED_REASONS
    for game in games:
        # The game asked this agent, and it is this agent's policy that answered.
        assert [action for _, action in game.order] == [letter_of(agent) for agent, _ in game.order]
