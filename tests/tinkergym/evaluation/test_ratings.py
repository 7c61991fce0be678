import math

import numpy as np
import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.evaluation.ratings import ELO, PairScore, bradley_terry, rate


def pairs_of(one, other, wins, losses):
    return [PairScore(one=one, other=other, score=float(n < wins)) for n in range(wins + losses)]


def test_odds_of_ten_to_one_are_four_hundred_points():
    found = rate(["weak", "strong"], pairs_of(1, 0, 1000, 100), anchor="weak")
    assert found["strong"].rating == pytest.approx(400, abs=3)
    assert found["weak"].rating == 0.0


def test_strengths_are_found_again_from_games_drawn_by_them():
    rng = np.random.default_rng(1)
    true = np.array([0.0, 0.5, 1.5, -1.0])
    pairs = [
        PairScore(one=i, other=j, score=float(rng.random() < 1 / (1 + math.exp(true[j] - true[i]))))
        for i in range(4)
        for j in range(i)
        for _ in range(2000)
    ]
    found = rate(list("abcd"), pairs, anchor="a")
    for name, strength in zip("abcd", true, strict=True):
        assert found[name].rating == pytest.approx(ELO * strength, abs=30)
        assert name == "a" or found[name].low < ELO * strength < found[name].high


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    truth = ELO * math.log(0.7 / 0.3)
    rng = np.random.default_rng(2)
    inside = 0
    for trial in range(60):
        pairs = [PairScore(one=0, other=1, score=float(rng.random() < 0.7)) for _ in range(100)]
        one = rate(["a", "b"], pairs, anchor="b", seed=trial, bootstraps=300)["a"]
        inside += one.low <= truth <= one.high
    assert inside >= 51


def test_a_player_that_won_everything_has_a_finite_rating():
    found = rate(["a", "b"], pairs_of(0, 1, 50, 0), anchor="b")
    assert 400 < found["a"].rating < 4000


def test_draws_make_players_equal():
    draws = [PairScore(one=0, other=1, score=0.5) for _ in range(10)]
    assert np.allclose([one.rating for one in rate(["a", "b"], draws).ratings], 0.0)


def test_many_tables_are_solved_as_one_by_one():
    rng = np.random.default_rng(3)
    tables = rng.integers(0, 20, size=(5, 3, 3)).astype(float)
    tables[:, range(3), range(3)] = 0.0
    together = bradley_terry(tables)
    assert np.allclose(together, [bradley_terry(table) for table in tables], atol=1e-8)


def test_random_is_the_anchor_where_it_plays_and_another_must_be_a_player():
    pairs = pairs_of(0, 1, 3, 1)
    assert rate(["a", "random"], pairs).anchor == "random"
    with pytest.raises(InvalidRequestError) as refused:
        rate(["a", "b"], pairs, anchor="c")
    assert refused.value.field == "anchor"


@pytest.mark.parametrize("score", [0.0, 0.5, 1.0])
def test_a_few_equal_results_leave_a_rating_uncertain(score):
    few, many = (
        rate(["a", "b"], [PairScore(one=0, other=1, score=score)] * count, anchor="b")["a"]
        for count in (4, 400)
    )
    assert few.high - few.low > 100
    assert many.high - many.low < few.high - few.low


def test_a_player_that_never_met_the_anchor_even_through_others_has_no_known_rating():
    pairs = [*pairs_of(0, 1, 3, 1), *pairs_of(2, 3, 3, 1), *pairs_of(4, 0, 2, 2)]
    found = rate(list("abcde"), pairs, anchor="a")
    assert [name for name in "abcde" if math.isinf(found[name].high)] == ["c", "d"]
    assert all(math.isinf(one.low) for one in rate(list("abcde"), pairs).ratings)
