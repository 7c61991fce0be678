import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tinkergym.errors import InvalidRequestError
from tinkergym.rubrics import math_equal, mathematics

pytest.importorskip("math_verify")


@pytest.mark.parametrize(
    ("answer", "gold", "equal"),
    [
        ("0.5", r"\frac{1}{2}", True),
        (" 042 ", "42", True),
        ("43", "42", False),
        ("x^2+2x+1", "(x+1)^2", True),
        (r"2\sqrt{2}", r"\sqrt{8}", True),
        ("{2, 1}", r"\{1,2\}", True),
        ("(1, 2)", "(2, 1)", False),
        (r"So it is $x=5$.", "5", True),
        (r"First $3$, so \boxed{\frac{3}{4}}.", "0.75", True),
        ("The answer is 6", "6", True),
        ("The answer is 6", "5", False),
        ("", "5", False),
        ("blue", "blue", True),
        ("blue", "red", False),
        ("no idea", "5", False),
        ("\ud800", "5", False),
        ("5" * 10_001, "5", False),
    ],
)
def test_compares_answers_as_mathematics(answer, gold, equal):
    assert math_equal(answer, gold) is equal


@pytest.mark.parametrize(
    "piece",
    [
        r"\frac{",
        "$",
        "\x00",
        *(
            pytest.param(piece, marks=pytest.mark.full("one hostile formula of ten"))
            for piece in ("{", "(", r"\boxed{", "x+", "\\", "^", "\n")
        ),
    ],
)
def test_bounds_hostile_formulas(piece):
    assert math_equal((piece * 10_000)[:10_000], "5", timeout_seconds=0.5) is False


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=60))
def test_raises_on_no_text(answer):
    assert math_equal(answer, r"\frac{1}{7}", timeout_seconds=1) is False


@pytest.mark.parametrize("gold", ["", "  ", "5" * 10_001])
def test_raises_on_invalid_gold_answer(gold):
    with pytest.raises(InvalidRequestError) as caught:
        math_equal("5", gold)
    assert caught.value.field == "gold"


def test_names_the_extra_without_math_verify(monkeypatch):
    mathematics.close_helpers()
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(InvalidRequestError, match=r"\.\[math\]"):
        math_equal("a", "b")
