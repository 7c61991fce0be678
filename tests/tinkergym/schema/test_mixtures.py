"""Several environments in one job: names, shares, and what is refused."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinkergym.errors import InvalidRequestError
from tinkergym.schema.evaluate_every import EvaluateEvery
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.mixtures import drawn, names_of
from tinkergym.schema.parsing import parse_spec

EASY, HARD = {"id": "a/Easy-v0", "weight": 0.7}, {"id": "b/Hard-v0", "weight": 0.3}


def spec(*environments, **settings):
    return parse_spec({"environments": list(environments) or [EASY, HARD], "steps": 3, **settings})


@given(seed=st.integers(0, 2**63 - 1), step=st.integers(1, 10**6), groups=st.integers(1, 64))
def test_shares_every_step_to_within_two_groups(seed, step, groups):
    counted = Counter(drawn([7, 2, 1], seed=seed, step=step, group=group) for group in range(groups))
    for index, share in enumerate((0.7, 0.2, 0.1)):
        assert abs(counted[index] - share * groups) < 2.5


def test_draws_these_by_this_seed():
    # Golden: a job that goes on elsewhere, or later, plays the same environments.
    assert [drawn([0.7, 0.3], seed=0, step=1, group=group) for group in range(10)] == [
        0,
        1,
        0,
        0,
        1,
        0,
        1,
        0,
        0,
        1,
    ]
    assert [drawn([1, 1, 2], seed=7, step=2, group=group) for group in range(8)] == [2, 2, 0, 2, 1, 0, 2, 1]


def test_shares_by_weights_over_many_steps():
    first = sum(drawn([0.7, 0.3], seed=3, step=step, group=0) == 0 for step in range(4000))
    assert abs(first / 4000 - 0.7) < 0.05


def test_represents_job_by_first_environment_also_when_read_again():
    mixed = spec()
    assert mixed.environment == EnvironmentRef(id="a/Easy-v0")
    assert parse_spec(mixed.model_dump()) == mixed
    assert mixed.played_in == "a/Easy-v0 70%, b/Hard-v0 30%"
    assert {mixed.environment_at(1, group).id for group in range(16)} == {"a/Easy-v0", "b/Hard-v0"}


def test_tells_environments_apart_by_arguments():
    mixed = spec({**EASY, "kwargs": {"size": 3}}, {**EASY, "kwargs": {"size": 9, "token": "secret"}})
    assert list(mixed.own_environments) == ["a/Easy-v0[size=3]", "a/Easy-v0[size=9]"]
    assert names_of([("a", {}), ("b", {"k": 1})]) == ["a", "b"]


@pytest.mark.parametrize(
    ("environments", "settings", "field"),
    [
        ([EASY, {**HARD, "weight": 0}], {}, "environments.1.weight"),
        ([EASY, {**HARD, "weight": -1}], {}, "environments.1.weight"),
        ([EASY, {"id": "b/Hard-v0"}], {}, "environments.1.weight"),
        ([EASY, EASY], {}, "environments"),
        ([EASY], {}, "environments"),
        ([EASY, HARD], {"environment": {"id": "b/Hard-v0"}}, "environment"),
        ([EASY, HARD], {"rollout": "script"}, "environments"),
        ([EASY, HARD], {"agents": {"x": {"kind": "train"}}}, "environments"),
        ([EASY, HARD], {"evaluate": {"steps": 2, "target": 1.0}}, "evaluate"),
    ],
)
def test_rejects_meaningless_mixture(environments, settings, field):
    with pytest.raises(InvalidRequestError) as caught:
        spec(*environments, **settings)
    assert caught.value.field == field


def test_evaluates_each_when_no_environment_is_named():
    mixed = spec(evaluate=[EvaluateEvery(2), EvaluateEvery(1, "b/Hard-v0", name="hard", target=0.9)])
    assert [mixed.name_of(one) for one in mixed.evaluations] == ["a/Easy-v0", "b/Hard-v0", "hard"]
    assert [mixed.environment_of(one).id for one in mixed.evaluations] == ["a/Easy-v0", *["b/Hard-v0"] * 2]


def test_evaluates_with_arguments_of_the_environment_it_stands_for():
    parts = ({**EASY, "kwargs": {"size": 3}}, {**EASY, "kwargs": {"size": 9}})
    mixed = spec(*parts, evaluate=EvaluateEvery(2, split="test", name="held out"))
    assert [mixed.environment_of(one).kwargs for one in mixed.evaluations] == [
        {"size": 3, "split": "test"},
        {"size": 9, "split": "test"},
    ]
    assert [one.name for one in mixed.evaluations] == [
        "held out:a/Easy-v0[size=3]",
        "held out:a/Easy-v0[size=9]",
    ]


def test_replaces_arguments_of_environment_by_the_evaluations():
    mixed = spec({**EASY, "kwargs": {"size": 3}}, HARD, evaluate=EvaluateEvery(2, env_kwargs={"size": 7}))
    assert [mixed.environment_of(one).kwargs["size"] for one in mixed.evaluations] == [7, 7]


def test_names_evaluation_with_longest_fitting_name_by_best():
    mixed = spec(
        evaluate=[EvaluateEvery(2, "a/Easy-v0", name=name) for name in ("a", "a/b")], best_by="a/b/c"
    )
    assert mixed.best_decided_by() == ("a/b", "c")


def test_keeps_names_short_and_free_of_keys():
    def names(key):
        judge = {"url": "https://judge.example/v1", "model": "small", "api_key": key}
        return names_of([("a/Easy-v0", {"judge": judge, "level": level}) for level in (1, 2)])

    assert names("sk-secret") == names("stored:abc")
    assert "sk-secret" not in "".join(names("sk-secret"))
    long = names_of([("a/Easy-v0", {"text": "x" * 10_000 + tail}) for tail in "ab"])
    assert len(set(long)) == 2
    assert max(map(len, long)) < 200
