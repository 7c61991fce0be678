import math

import numpy as np
import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.evaluation.ratings import ELO, PairScore, Rating, Ratings, bradley_terry, rate


def pairs_of(one, other, wins, losses):
    return [PairScore(one=one, other=other, score=float(n < wins)) for n in range(wins + losses)]


def test_rates_odds_of_ten_to_one_as_four_hundred_points():
    found = rate(["weak", "strong"], pairs_of(1, 0, 1000, 100), anchor="weak")
    assert found["strong"].rating == pytest.approx(400, abs=3)
    assert found["weak"].rating == 0.0


def test_recovers_strengths_from_games_drawn_by_them():
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


def test_holds_truth_in_the_interval_as_often_as_stated():
    truth = ELO * math.log(0.7 / 0.3)
    rng = np.random.default_rng(2)
    inside = 0
    for trial in range(60):
        pairs = [PairScore(one=0, other=1, score=float(rng.random() < 0.7)) for _ in range(100)]
        one = rate(["a", "b"], pairs, anchor="b", seed=trial, bootstraps=300)["a"]
        inside += one.low <= truth <= one.high
    assert inside >= 51


def test_rates_finitely_a_player_that_won_everything():
    found = rate(["a", "b"], pairs_of(0, 1, 50, 0), anchor="b")
    assert 400 < found["a"].rating < 4000


def test_rates_players_who_draw_as_equal():
    draws = [PairScore(one=0, other=1, score=0.5) for _ in range(10)]
    assert np.allclose([one.rating for one in rate(["a", "b"], draws).ratings], 0.0)


def test_solves_many_tables_together_as_one_by_one():
    rng = np.random.default_rng(3)
    tables = rng.integers(0, 20, size=(5, 3, 3)).astype(float)
    tables[:, range(3), range(3)] = 0.0
    together = bradley_terry(tables)
    assert np.allclose(together, [bradley_terry(table) for table in tables], atol=1e-8)


def test_anchors_at_random_where_it_plays_else_at_named_player():
    pairs = pairs_of(0, 1, 3, 1)
    assert rate(["a", "random"], pairs).anchor == "random"
    with pytest.raises(InvalidRequestError) as refused:
        rate(["a", "b"], pairs, anchor="c")
    assert refused.value.field == "anchor"


@pytest.mark.parametrize("score", [0.25, 0.5, 0.75])
def test_leaves_a_rating_from_few_equal_results_uncertain(score):
    few, many = (
        rate(["a", "b"], [PairScore(one=0, other=1, score=score)] * count, anchor="b")["a"]
        for count in (4, 400)
    )
    assert few.high - few.low > 100
    assert many.high - many.low < few.high - few.low


def test_opens_the_interval_of_a_player_that_won_everything():
    found = rate(["a", "b"], pairs_of(0, 1, 20, 0), anchor="b")
    # 20 of 20 happen with 2.5 % to a player that wins 0.83: 277 points.
    assert 200 < found["a"].low < 350
    assert found["a"].high == math.inf
    assert found["a"].to_json()["interval_95"] == [found["a"].low, None]
    assert "open]" in str(found)
    loser = rate(["a", "b"], pairs_of(0, 1, 20, 0), anchor="a")["b"]
    assert (loser.low, loser.high) == (-math.inf, pytest.approx(-found["a"].low, abs=60))


def test_opens_the_intervals_of_players_that_no_other_ever_beat():
    # a and b beat each other, and both always beat c and the anchor.
    pairs = [*pairs_of(0, 1, 3, 3), *pairs_of(0, 2, 5, 0), *pairs_of(1, 3, 5, 0), *pairs_of(2, 3, 2, 2)]
    found = rate(list("abcd"), pairs, anchor="d")
    assert [math.isinf(found[name].high) for name in "abcd"] == [True, True, False, False]
    assert all(math.isfinite(found[name].low) for name in "abcd")


def test_bounds_winner_by_those_who_beat_its_victors():
    # a beat the anchor always, but lost to b, which the anchor beat.
    pairs = [*pairs_of(0, 2, 5, 0), *pairs_of(1, 0, 1, 2), *pairs_of(2, 1, 1, 2)]
    found = rate(list("abc"), pairs, anchor="c")
    assert all(math.isfinite(end) for one in found.ratings for end in (one.low, one.high))


def test_leaves_all_ends_to_an_unbounded_mean_open():
    # Without an anchor, the winner's strength moves the mean without a bound.
    found = rate(list("abc"), [*pairs_of(0, 1, 5, 0), *pairs_of(1, 2, 2, 2)], anchor="")
    assert [(math.isinf(found[n].low), math.isinf(found[n].high)) for n in "abc"] == [
        (False, True),
        (True, False),
        (True, False),
    ]


def test_knows_no_rating_of_players_that_never_met_the_anchor():
    pairs = [*pairs_of(0, 1, 3, 1), *pairs_of(2, 3, 3, 1), *pairs_of(4, 0, 2, 2)]
    found = rate(list("abcde"), pairs, anchor="a")
    unknown = [name for name in "abcde" if math.isinf(found[name].low) and math.isinf(found[name].high)]
    assert unknown == ["c", "d"]
    assert all(math.isinf(one.low) for one in rate(list("abcde"), pairs).ratings)


@pytest.mark.parametrize("steps", [(None, None), (0, 9)])
def test_draws_an_open_end_unlike_a_known_one(tmp_path, steps):
    pytest.importorskip("matplotlib")
    pictures = []
    for high in (300.0, math.inf):
        found = [
            Rating(name=f"job-p@{n}", rating=300.0 * n, low=-100.0, high=high, pairs=9, step=step)
            for n, step in enumerate(steps)
        ]
        ratings = Ratings(ratings=tuple(found), anchor="", left_out={})
        pictures.append(ratings.to_png(tmp_path / "ratings.png").read_bytes())
    assert pictures[0] != pictures[1]
    assert all(one.startswith(b"\x89PNG") for one in pictures)
