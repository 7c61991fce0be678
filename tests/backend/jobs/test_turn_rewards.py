from __future__ import annotations

import numpy as np

from tests.backend.jobs.played_episodes import batch, episode, half
from tinkergym.schema.algorithms import GRPO

GOOD, BAD = episode((1.0, 2, "stop"), (3.0, 1, "stop")), episode((0.0, 2, "stop"), (0.0, 2, "stop"))


PAIR = {"group_size": 2, "groups_per_step": 1}


def test_each_answer_can_be_credited_with_what_was_earned_from_it_on():
    found = batch(GOOD, BAD, algorithm=GRPO(**PAIR, credit="turn", discount=0.5))
    # From the first turn on 1 + 0.5 * 3 = 2.5 against 0, from the second on 3 against 0.
    good, bad = (sequence.advantage for sequence in found.sequences)
    assert good == [0, 0, 1.25, 1.25, 0, 0, 1.5]
    assert bad == [0, 0, -1.25, -1.25, 0, 0, -1.5, -1.5]
    assert found.metrics["lone_turns"] == 0


def test_a_long_answer_is_paid_less_and_the_environments_reward_is_left_alone():
    long = episode((1.0, 8, "length"))
    short = episode((1.0, 4, "stop"))
    algorithm = GRPO(**PAIR, overlong_tokens=4, overlong_penalty=0.5)
    found = batch(long, short, algorithm=algorithm)
    assert [s.advantage for s in found.sequences] == [-0.25, 0.25]
    assert found.metrics["overlong_penalty_mean"] == 0.25
    assert long.episode_return == 1.0
    assert batch(long, short).metrics["zero_variance_groups"] == 1


def test_kl_in_the_reward_of_each_turn_is_that_of_its_own_answer():
    algorithm = GRPO(**PAIR, kl_coefficient=0.1, kl_in="reward", kl_estimator="k1", credit="turn")
    found = batch(GOOD, BAD, algorithm=algorithm, reference=half)
    last = (3.0 - 0.1 * np.log(2)) - (0.0 - 0.2 * np.log(2))
    np.testing.assert_allclose(found.sequences[0].advantage[-1], last / 2)
