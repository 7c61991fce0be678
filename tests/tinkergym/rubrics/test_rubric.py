import math

import numpy as np
import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRequestError, InvalidRewardError
from tinkergym.rubrics import Rubric, RubricResult, Term


def rubric():
    made = Rubric()

    @made.term(weight=0.5)
    def near(answer, gold):
        return 1 / (1 + abs(int(answer) - int(gold)))

    @made.term
    def correct(answer, gold):
        return answer == gold

    @made.term(weight=0, name="length")
    def characters(**facts):
        return len(facts["answer"])

    @made.gate
    def is_number(answer):
        return answer.isdigit()

    return made


def test_sums_weighted_terms_as_reward_and_logs_them_all():
    reward, metrics = rubric().score(answer="42", gold="42")
    assert reward == 1.5
    assert metrics == {
        "reward/is_number": 1.0,
        "reward/near": 1.0,
        "reward/correct": 1.0,
        "reward/length": 2.0,
    }
    assert rubric().score(answer="44", gold="42", unused=None).reward == pytest.approx(0.5 / 3)


def test_asks_nothing_and_pays_0_behind_a_failed_gate():
    result = rubric().score(answer="forty", gold="42")
    assert result.reward == 0.0
    assert result.terms == {"is_number": 0.0, "near": 0.0, "correct": 0.0}


def test_counts_weighted_gate_when_it_holds():
    terms = [Term("formed", lambda answer: 0.5, weight=2, gate=True), Term("right", lambda: 1)]
    assert Rubric(terms).score(answer="").reward == 2.0
    assert Rubric([Term("formed", lambda: 0, weight=2, gate=True)]).score().reward == 0.0


def raising(answer):
    return {}[answer]


@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_invalidates_reward_by_raising_term_and_names_its_traceback(weight):
    with pytest.raises(InvalidRewardError) as caught:
        Rubric([Term("right", lambda: 1), Term("lookup", raising, weight)]).score(answer="x")
    assert caught.value.field == "reward/lookup"
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "1", np.float32("nan"), 10**400, [1.0]])
def test_invalidates_reward_by_what_is_no_finite_number(value):
    with pytest.raises(InvalidRewardError):
        Rubric([Term("judge", lambda: value)]).score()


@pytest.mark.parametrize("value", [True, 1, 1.0, np.float32(1), np.int64(1), np.bool_(True)])
def test_takes_numbers_and_bools_of_any_kind(value):
    result = Rubric([Term("judge", lambda: value)]).score()
    assert result == RubricResult(1.0, {"reward/judge": 1.0})
    assert type(result.reward) is float


def test_invalidates_overflowing_sum():
    with pytest.raises(InvalidRewardError):
        Rubric([Term("a", lambda: 1e308), Term("b", lambda: 1e308)]).score()


def test_names_fact_that_is_missing():
    with pytest.raises(InvalidRewardError):
        rubric().score(answer="4")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rubric([Term("a", len), Term("a", len)]),
        lambda: Term("two words", raising),
        lambda: Term("a", raising, math.nan),
        lambda: Term("a", lambda *facts: 1),
        lambda: Rubric().score(),
    ],
)
def test_rejects_rubric_that_cannot_work(make):
    with pytest.raises(InvalidRequestError):
        make()


def test_returns_result_from_single_turn_environment_as_is():
    class Sums(tg.SingleTurnEnv):
        def ask(self, options):
            return "40+2="

        def score(self, answer):
            return rubric().score(answer=answer, gold="42")

    env = Sums()
    env.reset(seed=0)
    _, reward, _, _, info = env.step("42")
    assert reward == 1.5
    assert info["metrics"]["reward/near"] == 1.0


def test_names_averaged_terms_so():
    rubric = Rubric()
    rubric.term(lambda answer: 2.0, name="polite", average=True)
    found = rubric.score(answer="")
    assert (found.reward, found.metrics, found.terms) == (2.0, {"mean/reward/polite": 2.0}, {"polite": 2.0})
