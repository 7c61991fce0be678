from __future__ import annotations

import numpy as np
import pytest

from backend.jobs.turn_rewards import overlong_penalty
from tests.backend.jobs.played_episodes import batch, episode, half
from tinkergym.algorithms import GRPO

GOOD, BAD = episode((1.0, 2, "stop"), (3.0, 1, "stop")), episode((0.0, 2, "stop"), (0.0, 2, "stop"))


PAIR = {"group_size": 2, "groups_per_step": 1}


def test_credits_each_completion_with_what_was_earned_from_it_on():
    found = batch(GOOD, BAD, algorithm=GRPO(**PAIR, credit="turn", discount=0.5))
    # From the first turn on 1 + 0.5 * 3 = 2.5 against 0, from the second on 3 against 0.
    good, bad = (sequence.advantage for sequence in found.sequences)
    assert good == [0, 0, 1.25, 1.25, 0, 0, 1.5]
    assert bad == [0, 0, -1.25, -1.25, 0, 0, -1.5, -1.5]
    assert found.metrics["lone_turns"] == 0


def test_pays_long_completion_less_and_leaves_environments_reward_alone():
    long = episode((1.0, 8, "length"))
    short = episode((1.0, 4, "stop"))
    algorithm = GRPO(**PAIR, overlong_tokens=4, overlong_penalty=0.5)
    found = batch(long, short, algorithm=algorithm)
    assert [s.advantage for s in found.sequences] == [-0.25, 0.25]
    assert found.metrics["overlong_penalty_mean"] == 0.25
    assert long.episode_return == 1.0
    assert batch(long, short).metrics["zero_variance_groups"] == 1


def test_charges_each_turn_with_kl_of_its_own_completion():
    algorithm = GRPO(**PAIR, kl_coefficient=0.1, kl_in="reward", kl_estimator="k1", credit="turn")
    found = batch(GOOD, BAD, algorithm=algorithm, reference=half)
    last = (3.0 - 0.1 * np.log(2)) - (0.0 - 0.2 * np.log(2))
    np.testing.assert_allclose(found.sequences[0].advantage[-1], last / 2)


@pytest.mark.parametrize(
    ("tokens", "expected"), [(0, 0), (12, 0), (13, 0.5), (14, 1.0), (16, 2.0), (20, 2.0)]
)
def test_grows_penalty_over_the_buffer_and_no_further(tokens, expected):
    assert overlong_penalty(tokens, most_tokens=16, buffer_tokens=4, penalty=2.0) == expected


def test_matches_dapos_soft_overlong_punishment():
    """The paper's three cases, with L_max = 20 and L_cache = 8."""
    for length in range(30):
        if length <= 12:
            paper = 0.0
        elif length <= 20:
            paper = (12 - length) / 8
        else:
            paper = -1.0
        assert -overlong_penalty(length, most_tokens=20, buffer_tokens=8, penalty=1.0) == paper


def test_charges_no_penalty_without_a_buffer():
    assert overlong_penalty(100, most_tokens=10, buffer_tokens=0, penalty=1.0) == 0.0
