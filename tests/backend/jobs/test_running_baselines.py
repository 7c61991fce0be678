"""Running baselines: a mean per seat and kind of opponent, never shared, and not of what it judges."""

from __future__ import annotations

import pytest

from backend.episodes.episode_requests import step_requests
from backend.jobs.running_baselines import RunningBaselines, key_of
from backend.jobs.train_batch import earned_by_seat, train_batch
from tests.backend.seats import result_of
from tinkergym.algorithms import RunningBaseline
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.seats import SharedWith, Train
from tinkergym.schema.opponents import League, Scripted
from tinkergym.testing.episodes import one_turn_episode

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


def test_each_seat_and_kind_of_opponent_has_a_mean_of_its_own():
    seats = [seat for seat, _ in earned_by_seat(SPEC, played(), "job-1/x")]
    keys = {key_of(seat).split("|", 1)[1] for seat in seats}
    assert {"x|trained", "o|trained"} < keys
    assert keys & {"x|random", "o|random"}


def test_an_episode_is_compared_with_what_was_earned_before_it():
    baselines = RunningBaselines()
    (first, *_) = earned_by_seat(SPEC, played(), "job-1/x")
    assert baselines.value(first[0], 0.5) == 0
    baselines.add([first], 0.5)
    assert baselines.value(first[0], 0.5) == pytest.approx(first[1])
    baselines.add([(first[0], 0.0)], 0.5)
    assert baselines.value(first[0], 0.5) == pytest.approx(first[1] / 3)
    again = RunningBaselines()
    again.restore(baselines.state())
    assert again.value(first[0], 0.5) == baselines.value(first[0], 0.5)


def test_advantages_are_what_is_above_the_seats_own_mean():
    baselines = RunningBaselines()

    def advantages():
        batch = train_batch(
            SPEC, 1, played(), reference=list, values=list, policy="job-1/x", baselines=baselines
        )
        return sorted({sequence.advantage for sequence in batch.sequences})

    assert advantages() == [-1.0, 1.0]
    baselines.add(earned_by_seat(SPEC, played(), "job-1/x"), 0.5)
    assert advantages() == pytest.approx([0.0] * len(advantages()))
