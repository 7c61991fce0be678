import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinkergym as tg
from tinkergym.errors import InvalidRequestError
from tinkergym.rollout.environment_host import system_prompt_of
from tinkergym.wrappers import ExtractAnswer, StripReasoning, SystemPrompt


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


def test_a_system_prompt_takes_the_place_of_the_environments_own():
    env = SystemPrompt(Mirror(), "Be brief.")
    assert system_prompt_of(env) == "Be brief."
    assert system_prompt_of(env.env) == "Mirror."
    assert env.metadata["turns"] == env.env.metadata["turns"]


@pytest.mark.parametrize("text", [None, 3, "\ud800"])
def test_a_system_prompt_must_be_text(text):
    with pytest.raises(InvalidRequestError, match="Unicode"):
        SystemPrompt(Mirror(), text)


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
def test_reasoning_is_cut_out_and_counted(said, left):
    answer, metrics = seen(StripReasoning(Mirror()), said)
    assert answer == left
    assert metrics == {"length": float(len(left)), "reasoning_characters": float(len(said) - len(left))}


@given(st.lists(st.sampled_from(["<think>", "</think>", "a", " ", "<", "think>"]), max_size=12).map("".join))
def test_no_mark_is_left_where_all_marks_are_paired(text):
    answer, _ = seen(StripReasoning(Mirror()), f"<think>{text.replace('</think>', '')}</think>rest")
    assert answer == "rest"


def test_reasoning_may_have_other_marks():
    assert seen(StripReasoning(Mirror(), "[[", "]]"), "[[x]]y")[0] == "y"


@pytest.mark.parametrize(
    ("field", "marks"), [("open", ("", "b")), ("close", ("a", "")), ("close", ("a", "a"))]
)
def test_marks_that_mark_nothing_are_refused(field, marks):
    with pytest.raises(InvalidRequestError) as caught:
        StripReasoning(Mirror(), *marks)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("how", "said", "answer"),
    [
        ({"boxed": True}, r"\boxed{1}, no: \boxed{ 7 }.", "7"),
        ({"boxed": True}, r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ({"boxed": True}, r"\boxed{7} and { \boxed{unfinished", "7"),
        ({"boxed": True}, r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        ({"tag": "answer"}, "<answer>1</answer> or <answer>\n7\n</answer>", "7"),
        ({"tag": "answer"}, "<answer>7</answer> <answer>8", "7"),
        ({"pattern": r"#### (-?\d+)"}, "#### 1\n#### 7", "7"),
        ({"pattern": r"\d+"}, "1 2 7", "7"),
    ],
)
def test_the_last_marked_answer_is_what_the_environment_sees(how, said, answer):
    assert seen(ExtractAnswer(Mirror(), **how), said) == (
        answer,
        {"length": float(len(answer)), "answer_missing": 0.0},
    )


@pytest.mark.parametrize("how", [{"boxed": True}, {"tag": "answer"}, {"pattern": "#### (.+)"}])
def test_a_missing_answer_is_counted(how):
    assert seen(ExtractAnswer(Mirror(), **how), "seven") == ("", {"length": 0.0, "answer_missing": 1.0})
    whole = ExtractAnswer(Mirror(), **how, missing="whole")
    assert seen(whole, "seven")[0] == "seven"


@pytest.mark.parametrize("part", [r"\boxed{", "{", "<answer>", "</answer>"])
def test_a_megabyte_of_marks_is_read(part):
    for how in ({"boxed": True}, {"tag": "answer"}):
        assert seen(ExtractAnswer(Mirror(), **how), part * (1_000_000 // len(part)))[0] == ""


@pytest.mark.parametrize(
    ("field", "how"),
    [
        ("pattern", {}),
        ("pattern", {"boxed": True, "tag": "a"}),
        ("pattern", {"pattern": "("}),
        ("tag", {"tag": "a b"}),
        ("missing", {"boxed": True, "missing": "guess"}),
    ],
)
def test_what_marks_no_answer_is_refused(field, how):
    with pytest.raises(InvalidRequestError) as caught:
        ExtractAnswer(Mirror(), **how)
    assert caught.value.field == field
