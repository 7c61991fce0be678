import re

import numpy as np
from tinkergym_math.arithmetic import DATA_DIR, ArithmeticEnv
from tinkergym_math.dialogues import dialogues
from tinkergym_math.make_data import make

SPLITS = ("train", "test")


def tasks(split):
    return [(task["question"], task["answer"]) for task in ArithmeticEnv(split).tasks]


def parts(question):
    left, operator, right = re.fullmatch(r"(\d\d?)([+-])(\d\d?)=", question).groups()
    return int(left), operator, int(right)


def unordered(question):
    left, operator, right = parts(question)
    return operator, (min(left, right), max(left, right))


def test_has_3000_and_500_tasks_in_its_splits():
    assert [len(tasks(split)) for split in SPLITS] == [3000, 500]


def test_gives_right_nonnegative_answers_throughout():
    for split in SPLITS:
        for question, answer in tasks(split):
            left, operator, right = parts(question)
            assert int(answer) == (left + right if operator == "+" else left - right) >= 0


def test_keeps_problems_and_their_mirrors_unique_within_and_between_splits():
    problems = [unordered(question) for split in SPLITS for question, _ in tasks(split)]
    assert len(set(problems)) == len(problems)


def test_makes_the_shipped_files_by_script(tmp_path):
    make(tmp_path)
    for split in SPLITS:
        name = f"{split}.jsonl"
        assert (tmp_path / name).read_bytes() == (DATA_DIR / name).read_bytes()


def test_never_touches_test_split_in_dialogues():
    held_out = {unordered(question) for question, _ in tasks("test")}
    asked = {unordered(messages[0]["content"]) for messages in dialogues(np.random.default_rng(0), 20_000)}
    assert not asked & held_out
    assert len(asked) > 4000


def test_answers_dialogues_with_the_asked_share_of_right_numbers():
    for accuracy in (0.2, 0.7):
        right = []
        for asked, answered in dialogues(np.random.default_rng(0), 2000, accuracy=accuracy):
            left, operator, number = parts(asked["content"])
            truth = left + number if operator == "+" else left - number
            assert 0 < abs(int(answered["content"]) - truth) <= 10 or answered["content"] == str(truth)
            right.append(answered["content"] == str(truth))
        assert abs(np.mean(right) - accuracy) < 0.04
