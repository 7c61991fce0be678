from collections import Counter

import pytest

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.evaluate_every import EvaluateEvery
from tinkergym.schema.parsing import parse_spec


def test_rejects_interval_where_there_is_nothing_to_measure_with():
    spec = {"kind": "sft", "data": "0" * 64, "steps": 1, "eval_every": 5}
    with pytest.raises(InvalidRequestError) as caught:
        parse_spec(spec)
    assert caught.value.field == "eval_every"
    assert parse_spec({**spec, "held_out": 0.1}).eval_every == 5


@pytest.mark.parametrize(
    ("settings", "tasks", "played"),
    [
        ({}, 0, [None] * 64),
        ({"episodes": 3}, 0, [None] * 3),
        ({}, 3, [0, 1, 2]),
        ({"samples": 2}, 3, [0, 0, 1, 1, 2, 2]),
        ({"episodes": 6}, 3, [0, 1, 2, 0, 1, 2]),
        ({"episodes": 6, "samples": 2}, 3, [0, 0, 1, 1, 2, 2]),
        ({"episodes": 8, "samples": 4}, 2, [0, 0, 0, 0, 1, 1, 1, 1]),
    ],
)
def test_plays_tasks_equally_often(settings, tasks, played):
    assert EvaluateEvery(1, **settings).tasks_played(tasks) == played


@pytest.mark.parametrize(
    ("settings", "tasks", "different"),
    [
        ({}, 1000, 64),
        ({"episodes": 8}, 40, 8),
        ({"split": "test"}, 1000, 1000),
        ({"split": "test"}, 20_000, 10_000),
    ],
)
def test_draws_different_tasks_and_same_ones_each_time(settings, tasks, different):
    evaluation = EvaluateEvery(1, **settings)
    played = evaluation.tasks_played(tasks)
    assert (len(played), len(set(played))) == (different, different)
    assert evaluation.tasks_played(tasks) == played


def test_plays_each_drawn_task_as_often_as_asked():
    played = EvaluateEvery(1, episodes=30, samples=4).tasks_played(40)
    assert sorted(Counter(played).values()) == [2, 4, 4, 4, 4, 4, 4, 4]
