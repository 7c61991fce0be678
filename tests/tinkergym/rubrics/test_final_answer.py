import pytest

from tinkergym.rubrics.final_answer import final_answer, number_of, same_number


@pytest.mark.parametrize(
    ("text", "final"),
    [
        ("12 and 30 make\n#### 42", "42"),
        (r"thus \boxed{3} or \boxed{x^{2}}", "x^{2}"),
        ("it is -1,000.5 or so", "-1,000.5"),
        (r"\boxed{never closed", None),
        ("no idea", None),
        ("####", None),
    ],
)
def test_extracts_final_answer_of_a_text(text, final):
    assert final_answer(text) == final


@pytest.mark.parametrize(
    ("said", "gold", "same"), [("$1,024.0", "1024", True), ("x", "x", False), ("3", "4", False)]
)
def test_compares_numbers_as_numbers(said, gold, same):
    assert same_number(said, gold) == same


@pytest.mark.parametrize("text", ["many", "", "Infinity", "1/2"])
def test_rejects_what_is_no_number(text):
    assert number_of(text) is None
