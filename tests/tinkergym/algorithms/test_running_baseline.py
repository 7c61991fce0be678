"""Running baselines: a mean per seat and kind of opponent, never shared, and not of what it judges."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from backend.episodes.episode_requests import step_requests
from backend.episodes.played import trained_seats
from backend.jobs.train_batch import outcomes_of, train_batch
from tests.backend.seats import result_of
from tinkergym.algorithms import RunningBaseline
from tinkergym.schema.fixed_players import League, Scripted
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import SharedWith, Train
from tinkergym.testing.made_up_episodes import one_turn_episode

SPEC = RLSpec(
    environment=EnvironmentRef(id="board/TicTacToe-v0"),
    agents={"x": Train(), "o": SharedWith("x")},
    self_play=League(anchors=[Scripted("random")], anchor_share=0.5, current_share=0.5),
    algorithm=RunningBaseline(groups_per_step=4, decay=0.5),
    steps=100,
)
EARNED = {"x": 1.0, "o": -1.0}


def played(step=1):
    return [
        (request, result_of(request, *(one_turn_episode(EARNED[a], agent=a) for a in request.sampled_seats)))
        for request in step_requests("job-1", SPEC, step)
    ]


def outcomes():
    return outcomes_of(SPEC, trained_seats(played(), "job-1/x"))


def test_keeps_a_mean_for_each_seat_and_kind_of_opponent():
    keys = {one.key.split("|", 1)[1] for one in outcomes()}
    assert {"x|trained", "o|trained"} < keys
    assert keys & {"x|random", "o|random"}


def test_compares_an_episode_with_those_before_it():
    algorithm, memory = SPEC.algorithm, {}
    first, *_ = outcomes()
    assert algorithm.mean(memory, first.key) == 0
    algorithm.remember([first], memory)
    assert algorithm.mean(memory, first.key) == pytest.approx(first.earned)
    algorithm.remember([replace(first, earned=0.0)], memory)
    algorithm.remember([replace(first, counts=False)], memory)
    assert algorithm.mean(memory, first.key) == pytest.approx(first.earned / 3)
    assert json.loads(json.dumps(memory)) == memory


def test_subtracts_the_mean_of_the_seat_itself():
    memory = {}

    def advantages():
        batch = train_batch(SPEC, 1, played(), reference=list, values=list, policy="job-1/x", memory=memory)
        return sorted({sequence.advantage for sequence in batch.sequences})

    assert advantages() == [-1.0, 1.0]
    SPEC.algorithm.remember(outcomes(), memory)
    assert advantages() == pytest.approx([0.0] * len(advantages()))
