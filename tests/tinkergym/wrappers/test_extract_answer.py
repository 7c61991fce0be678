import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRequestError
from tinkergym.wrappers import ExtractAnswer


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
def test_shows_environment_the_last_marked_answer(how, said, answer):
    assert seen(ExtractAnswer(Mirror(), **how), said) == (
        answer,
        {"length": float(len(answer)), "answer_missing": 0.0},
    )


@pytest.mark.parametrize("how", [{"boxed": True}, {"tag": "answer"}, {"pattern": "#### (.+)"}])
def test_counts_missing_answer(how):
    assert seen(ExtractAnswer(Mirror(), **how), "seven") == ("", {"length": 0.0, "answer_missing": 1.0})
    whole = ExtractAnswer(Mirror(), **how, missing="whole")
    assert seen(whole, "seven")[0] == "seven"


@pytest.mark.parametrize("part", [r"\boxed{", "{", "<answer>", "</answer>"])
def test_reads_a_megabyte_of_marks(part):
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
def test_rejects_what_marks_no_answer(field, how):
    with pytest.raises(InvalidRequestError) as caught:
        ExtractAnswer(Mirror(), **how)
    assert caught.value.field == field
