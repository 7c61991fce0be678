from __future__ import annotations

import pytest

from tinkergym.testing.made_up_episodes import one_turn_episode


@pytest.mark.parametrize(
    ("rewards", "total"),
    [([], 0.0), ([2.0], 2.0), ([1.0, -0.5, 2.0], 2.5), ([3.0, 0.0], 3.0)],
)
def test_sums_return_of_an_episode_over_its_turns(rewards, total):
    one = one_turn_episode()
    turns = [one.turns[0].model_copy(update={"reward": reward}) for reward in rewards]
    assert one.model_copy(update={"turns": turns}).episode_return == total


def test_averages_metrics_whose_names_say_so():
    one = one_turn_episode()
    reported = ({"mean/understood": 1.0, "calls": 1.0}, {"calls": 2.0}, {"mean/understood": 0.5})
    turns = [one.turns[0].model_copy(update={"metrics": metrics}) for metrics in reported]
    assert one.model_copy(update={"turns": turns}).metrics == {"mean/understood": 0.75, "calls": 3.0}
