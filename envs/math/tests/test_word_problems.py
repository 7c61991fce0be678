import json

import pytest
from tinkergym_math.word_problems import problem_of

from tinkergym.errors import InvalidRequestError
from tinkergym.registration.environments import make
from tinkergym.testing import EnvContract
from tinkergym.tool_calls.call import ToolCall
from tinkergym.tools import render_calls

NAME = "math/WordProblems-v0"
GSM8K = {"question": "Two dozen eggs?", "answer": "2*12=<<2*12=24>>24 eggs.\n#### 1,024"}
MATH = {"problem": "Half?", "level": "Level 1", "type": "Algebra", "solution": r"So $\boxed{\frac{1}{2}}$."}


class TestWordProblems(EnvContract):
    def make(self):
        return make(NAME)


def test_gives_final_answer_of_rows_in_both_layouts():
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
def test_rejects_row_of_another_layout(row, layout):
    with pytest.raises(InvalidRequestError) as refused:
        problem_of(row, layout, 3)
    assert refused.value.field == "layout"


def played(answer, rows, layout, tmp_path, monkeypatch):
    monkeypatch.setenv("TINKERGYM_DATA", str(tmp_path))
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    env = make(NAME, data="test.jsonl", layout=layout, split=None)
    env.reset(seed=0)
    return env.step(answer)[1]


@pytest.mark.parametrize(
    ("answer", "reward"), [("#### 1024", 1.0), ("1024.0", 1.0), ("$1,024", 1.0), ("24", 0.0)]
)
def test_compares_numbers_as_numbers(answer, reward, tmp_path, monkeypatch):
    assert played(answer, [GSM8K], "gsm8k", tmp_path, monkeypatch) == reward


@pytest.mark.parametrize(("answer", "reward"), [(r"\boxed{0.5}", 1.0), (r"\boxed{2}", 0.0), ("?", 0.0)])
def test_compares_formulas_as_mathematics(answer, reward, tmp_path, monkeypatch):
    assert played(answer, [MATH], "math", tmp_path, monkeypatch) == reward


def test_finds_answer_with_the_calculator_and_rejects_unknown_tool():
    env = make("math/WordProblemsWithTools-v0", tools=["calculator"])
    question, _ = env.reset(seed=3)
    call = render_calls([ToolCall("calculator", {"expression": question.removesuffix("=")})], "hermes")
    observation = env.step(call)[0]
    assert env.step(observation.splitlines()[1])[1] == 1.0
    with pytest.raises(InvalidRequestError):
        make("math/WordProblemsWithTools-v0", tools=["oracle"])
