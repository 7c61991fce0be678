import numpy as np
import pytest

from tests.tinkergym.algorithms.episodes import credits_of, outcomes
from tinkergym.algorithms import GRPO
from tinkergym.trajectory.outcomes import StepOutcomes

TURNS = {2.0: [2.0, 0.0], 4.0: [1.0, 3.0]}


def test_leaves_failures_and_lone_episodes_out():
    groups = [0.0, None, 4.0], [9.0, None], [1.0, 1.0]
    found = GRPO().credits(StepOutcomes(outcomes(*groups)))
    assert found.of == [-2.0, None, 2.0, None, None, 0.0, 0.0]
    assert found.metrics == {"zero_variance_groups": 1.0, "broken_groups": 1.0, "compared_groups": 2.0}


def test_credits_each_turn_with_what_follows():
    step = StepOutcomes(outcomes([2.0, 4.0], turns=TURNS))
    found = GRPO(credit="turn", discount=0.5).credits(step)
    # From the first turn on 2 against 1 + 0.5 * 3, from the second on 0 against 3.
    assert [turns.tolist() for turns in found.of] == [[-0.25, -1.5], [0.25, 1.5]]
    assert found.metrics["lone_turns"] == 0.0


def test_permutes_the_returns_in_the_control_experiment():
    group = [float(n) for n in range(8)]
    shuffled = credits_of(GRPO(), group, shuffle=np.random.default_rng(1))
    assert shuffled != credits_of(GRPO(), group)
    assert sorted(shuffled) == credits_of(GRPO(), group)


@pytest.mark.parametrize(
    ("credit", "returns", "expected"),
    [
        ("episode", [1.0, 1.0], True),
        ("episode", [0.0, 1.0], False),
        ("episode", [1.0], True),
        ("turn", [2.0, 2.0], True),
        ("turn", [2.0, 4.0], False),
    ],
)
def test_knows_a_group_that_teaches_nothing(credit, returns, expected):
    assert GRPO(credit=credit).has_zero_variance(outcomes(returns, turns=TURNS)) is expected


def test_misses_replaced_groups_only_for_the_scale_of_a_step():
    assert not GRPO(dynamic_sampling_rounds=1).needs_beyond_returns
