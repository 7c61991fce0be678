"""Environments of a script in which a job on a dataset is evaluated: how they are found, made and checked."""

import pytest

import tinkergym as tg
from tinkergym.errors import InvalidEnvironmentError, InvalidRequestError, UnknownEnvironmentError
from tinkergym.remote.client_evaluations import check, maker_of, most_at_once, sources_in
from tinkergym.schema.jobs.dataset import SFTSpec
from tinkergym.testing.bundles import byte_bundle


class Short(tg.SingleTurnEnv):
    """Pays for short answers."""

    def __init__(self, size=1):
        self.size = size

    def ask(self, options):
        return "Say something."

    def score(self, answer):
        return -len(answer) / 100


class Long(Short):
    """Pays for long ones."""

    def score(self, answer):
        return len(answer) / 100


class Broken(Short):
    def ask(self, options):
        raise KeyError("board")


def job_of(*evaluate):
    return SFTSpec(data="0" * 64, steps=1, evaluate=list(evaluate))


def test_finds_classes_in_one_evaluation_and_in_several():
    short, long = tg.EvaluateEvery(1, Short), tg.EvaluateEvery(1, Long, episodes=3)
    for given, found in (
        (short, [Short]),
        ([short, long], [Short, Long]),
        ((long,), [Long]),
        (tg.EvaluateEvery(1, "bandit/Bandit-v0"), []),
        ([], []),
    ):
        assert sources_in(given) == found


def test_makes_each_evaluation_by_its_class_with_own_arguments():
    spec = job_of(
        tg.EvaluateEvery(1, Short, env_kwargs={"size": 2}, name="two"),
        tg.EvaluateEvery(1, Short, env_kwargs={"size": 3}, name="three"),
        tg.EvaluateEvery(1, Long),
    )
    make = maker_of([Short, Short, Long], spec)
    made = [make(spec.environment_of(one)).unwrapped for one in spec.evaluate]
    assert [(type(env), env.size) for env in made] == [(Short, 2), (Short, 3), (Long, 1)]


def test_rejects_class_in_which_the_job_is_not_evaluated():
    with pytest.raises(InvalidRequestError) as refused:
        maker_of([Short, Long], job_of(tg.EvaluateEvery(1, Short)))
    assert refused.value.field == "env"


def test_rejects_two_classes_of_one_name():
    def namesake():
        class Short(tg.SingleTurnEnv):
            pass

        return Short

    with pytest.raises(InvalidRequestError) as refused:
        maker_of([Short, namesake()], job_of(tg.EvaluateEvery(1, Short)))
    assert refused.value.field == "evaluate"


def test_asks_for_class_that_is_missing():
    spec = job_of(tg.EvaluateEvery(1, Short), tg.EvaluateEvery(1, Long))
    with pytest.raises(UnknownEnvironmentError):
        maker_of([Short], spec)


@pytest.mark.parametrize("place", [0, 1])
def test_names_the_evaluation_whose_environment_cannot_be_played(place):
    sources = [Short, Short]
    sources[place] = Broken
    spec = job_of(*(tg.EvaluateEvery(1, own, name=f"{number}") for number, own in enumerate(sources)))
    with pytest.raises(InvalidEnvironmentError) as refused:
        check(maker_of(sources, spec), spec, byte_bundle())
    assert refused.value.field == "evaluate"


def test_accepts_sound_environments_and_plays_largest_evaluation_together():
    spec = job_of(tg.EvaluateEvery(1, Short, episodes=3), tg.EvaluateEvery(1, Long, episodes=40))
    check(maker_of([Short, Long], spec), spec, byte_bundle())
    assert most_at_once(spec) == 40
