import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinkergym as tg
from tinkergym.errors import InvalidRequestError
from tinkergym.wrappers import StripReasoning


class Mirror(tg.SingleTurnEnv):
    """Keeps what it was answered."""

    system_prompt = "Mirror."

    def ask(self, options):
        return "?"

    def score(self, answer):
        self.answered = answer
        return 1.0, {"length": float(len(answer))}


def seen(env, action):
    """Return what the environment inside saw, and the metrics."""
    env.reset(seed=0)
    _, _, _, _, info = env.step(action)
    return env.unwrapped.answered, info["metrics"]


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("7", "7"),
        (" 7 ", " 7 "),
        ("<think>3 + 4</think>\n\n7", "7"),
        ("3 + 4</think>7", "7"),
        ("<think>3 + 4", ""),
        ("so <think>a</think> it <think>b</think>is", "so  it is"),
        ("a</think>b<think>c", "b"),
        ("<think></think>", ""),
    ],
)
def test_cuts_out_and_counts_reasoning(said, left):
    answer, metrics = seen(StripReasoning(Mirror()), said)
    assert answer == left
    assert metrics == {"length": float(len(left)), "reasoning_characters": float(len(said) - len(left))}


@given(st.lists(st.sampled_from(["<think>", "</think>", "a", " ", "<", "think>"]), max_size=12).map("".join))
def test_leaves_no_mark_where_all_marks_are_paired(text):
    answer, _ = seen(StripReasoning(Mirror()), f"<think>{text.replace('</think>', '')}</think>rest")
    assert answer == "rest"


def test_accepts_other_marks_of_reasoning():
    assert seen(StripReasoning(Mirror(), "[[", "]]"), "[[x]]y")[0] == "y"


@pytest.mark.parametrize(
    ("field", "marks"), [("open", ("", "b")), ("close", ("a", "")), ("close", ("a", "a"))]
)
def test_rejects_marks_that_mark_nothing(field, marks):
    with pytest.raises(InvalidRequestError) as caught:
        StripReasoning(Mirror(), *marks)
    assert caught.value.field == field
