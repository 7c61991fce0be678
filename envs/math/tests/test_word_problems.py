import json

import pytest
from tinkergym_math.calculator import calculator
from tinkergym_math.word_problems import final_answer, problem_of

from tinkergym.errors import InvalidRequestError, ToolError
from tinkergym.registration.environments import make
from tinkergym.testing import EnvContract
from tinkergym.tools import render_calls
from tinkergym.tools.syntax import ToolCall

NAME = "math/WordProblems-v0"
GSM8K = {"question": "Two dozen eggs?", "answer": "2*12=<<2*12=24>>24 eggs.\n#### 1,024"}
MATH = {"problem": "Half?", "level": "Level 1", "type": "Algebra", "solution": r"So $\boxed{\frac{1}{2}}$."}


class TestWordProblems(EnvContract):
    def make(self):
        return make(NAME)


def test_rows_of_both_layouts_give_their_final_answer():
    assert problem_of(GSM8K, "gsm8k", 0) == ("Two dozen eggs?", "1,024")
    assert problem_of(MATH, "math", 0) == ("Half?", r"\frac{1}{2}")


@pytest.mark.parametrize(
    ("row", "layout"),
    [
        (GSM8K, "math"),
        (MATH, "gsm8k"),
        ({"question": "?", "answer": "#### many"}, "gsm8k"),
        ({"problem": "?", "solution": "none"}, "math"),
    ],
)
def test_a_row_of_another_layout_is_refused(row, layout):
    with pytest.raises(InvalidRequestError) as refused:
        problem_of(row, layout, 3)
    assert refused.value.field == "layout"


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
def test_the_final_answer_of_a_text(text, final):
    assert final_answer(text) == final


def played(answer, rows, layout, tmp_path, monkeypatch):
    monkeypatch.setenv("TINKERGYM_DATA", str(tmp_path))
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    env = make(NAME, data="test.jsonl", layout=layout, split=None)
    env.reset(seed=0)
    return env.step(answer)[1]


@pytest.mark.parametrize(
    ("answer", "reward"), [("#### 1024", 1.0), ("1024.0", 1.0), ("$1,024", 1.0), ("24", 0.0)]
)
def test_numbers_are_compared_as_numbers(answer, reward, tmp_path, monkeypatch):
    assert played(answer, [GSM8K], "gsm8k", tmp_path, monkeypatch) == reward


@pytest.mark.parametrize(("answer", "reward"), [(r"\boxed{0.5}", 1.0), (r"\boxed{2}", 0.0), ("?", 0.0)])
def test_formulas_are_compared_as_mathematics(answer, reward, tmp_path, monkeypatch):
    assert played(answer, [MATH], "math", tmp_path, monkeypatch) == reward


def test_the_calculator_finds_the_answer_and_an_unknown_tool_is_refused():
    env = make("math/WordProblemsWithTools-v0", tools=["calculator"])
    question, _ = env.reset(seed=3)
    call = render_calls([ToolCall("calculator", {"expression": question.removesuffix("=")})], "hermes")
    observation = env.step(call)[0]
    assert env.step(observation.splitlines()[1])[1] == 1.0
    with pytest.raises(InvalidRequestError):
        make("math/WordProblemsWithTools-v0", tools=["oracle"])


@pytest.mark.parametrize(
    ("expression", "result"),
    [("(3+4)*12.5", "87.5"), ("2**10", "1024"), ("-7/2", "-3.5"), ("0.1+0.2", "0.3")],
)
def test_the_calculator_is_exact(expression, result):
    assert calculator.call({"expression": expression}) == result


@pytest.mark.parametrize(
    "expression",
    [
        "1/0",
        "2**65",
        "9**64**2",
        "__import__('os')",
        "a+1",
        "1,2",
        "",
        "(" * 150,
        "True",
        "9" * 201,
        "1e4000",
    ],
)
def test_what_the_calculator_cannot_work_out_is_an_error_of_the_tool(expression):
    with pytest.raises(ToolError):
        calculator.call({"expression": expression})
