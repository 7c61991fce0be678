import numpy as np
import pytest

from tests.tinkergym.rollout.walks import RENDERER, YES, Walk, plans
from tinkergym.errors import NotReplayableError
from tinkergym.rollout.play_list import play
from tinkergym.rollout.recorded_start import RecordedStart, Written, recorded_turns, require_replayable

LONG = 3
"""A seed whose walk has several turns."""


class Drifts(Walk):
    """Shows something else each time."""

    def reply(self, action):
        shown, reward, over = super().reply(action)
        return f"{shown} {np.random.default_rng().integers(10**9)}", reward, over


class Shorter(Walk):
    def reply(self, action):
        shown, reward, _ = super().reply(action)
        return shown, reward, True


def played(given=(), make=Walk):
    plan = plans(LONG + 1)[LONG]
    sampler = RecordedStart(YES, {plan.session_id: given}, RENDERER.decode)
    (result,) = play([plan], sampler=sampler, renderer=RENDERER, make_env=lambda reference: make())
    return result.trajectory, sampler, plan.session_id


def test_repeats_the_start_and_samples_the_rest():
    record, *_ = played()
    assert len(record.turns) >= 3
    again, sampler, session = played([*recorded_turns(record, 2), Written.by_hand("no", RENDERER)])
    sampler.require_repeated(session)
    assert [turn.action for turn in again.turns] == ["yes", "yes", "no", *["yes"] * (len(record.turns) - 3)]
    end = record.turns[1].end
    assert again.segments[0].token_ids[:end] == record.segments[0].token_ids[:end]
    assert again.turns[:2] == record.turns[:2]


@pytest.mark.parametrize("make", [Drifts, Shorter])
def test_refuses_an_environment_that_shows_something_else(make):
    record, *_ = played()
    _, sampler, session = played(recorded_turns(record, 3), make)
    with pytest.raises(NotReplayableError) as refused:
        sampler.require_repeated(session)
    assert refused.value.field == "turns.2"


def test_refuses_an_environment_that_declares_it():
    env = Walk()
    require_replayable(env, "walk")
    env.metadata = {**env.metadata, "not_replayable": "it reads the clock"}
    with pytest.raises(NotReplayableError) as refused:
        require_replayable(env, "walk")
    assert refused.value.field == "environment"
