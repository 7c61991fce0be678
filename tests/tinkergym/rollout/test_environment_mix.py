import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRequestError
from tinkergym.rollout.environment_mix import describe_mix, makers_of
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec


class Echo(tg.SingleTurnEnv):
    def __init__(self, size=1):
        self.size = size

    def ask(self, options):
        return "say"

    def score(self, answer):
        return 1.0


class Other(Echo):
    pass


def job_of(mix, **settings):
    return RLSpec(**mix.settings, steps=1, rollout="client", **settings)


def test_returns_one_environment_or_several_with_weights():
    one = describe_mix(Echo, {"size": 2})
    assert one.settings["environment"].kwargs == {"size": 2}
    several = describe_mix([(Echo, 0.7, {"size": 3}), (Other, 0.3)]).settings["environments"]
    assert [(each["kwargs"], each["weight"]) for each in several] == [({"size": 3}, 0.7), ({}, 0.3)]


def test_makes_each_environment_in_its_own_way():
    mix = describe_mix([(Echo, 0.5, {"size": 3}), (Echo, 0.2, {"size": 4}), (Other, 0.3)])
    made = [mix.make(ref) for ref in job_of(mix).own_environments.values()]
    assert [(type(env.unwrapped), env.unwrapped.size) for env in made] == [(Echo, 3), (Echo, 4), (Other, 1)]


def test_makes_evaluation_with_own_arguments_like_its_named_environment():
    mix = describe_mix([(Echo, 0.5, {"size": 3}), (Other, 0.5)])
    evaluate = [tg.EvaluateEvery(1, env_kwargs={"size": 7})]
    spec = job_of(mix, evaluate=evaluate)
    played = [spec.environment_of(one) for one in spec.evaluations]
    for make in (mix.make, makers_of([Echo, Other], spec)):
        made = [make(ref).unwrapped for ref in played]
        assert [(type(env), env.size) for env in made] == [(Echo, 7), (Other, 7)]


def test_gives_each_environment_server_its_own_token(monkeypatch):
    urls = ["ws://127.0.0.1:8001", "ws://127.0.0.1:8002"]
    mix = describe_mix([(url, 0.5, {"token": f"token-of-{url}", "split": "train"}) for url in urls])
    made = []
    monkeypatch.setattr("tinkergym.rollout.local_environment.make_environment", made.append)
    for url in urls:
        mix.make(EnvironmentRef(id="tinkergym/Remote-v0", kwargs={"url": url, "split": "test"}))
    assert [ref.kwargs["token"] for ref in made] == [f"token-of-{url}" for url in urls]
    assert {ref.kwargs["split"] for ref in made} == {"test"}


def test_rejects_two_classes_of_one_name():
    def namesake():
        class Echo(tg.SingleTurnEnv):
            pass

        return Echo

    with pytest.raises(InvalidRequestError) as caught:
        describe_mix([(Echo, 0.5, {"size": 3}), (namesake(), 0.5)])
    assert caught.value.field == "environments"


def test_knows_classes_here_only():
    assert describe_mix([(Echo, 0.5), ("bandit/Bandit-v0", 0.5)]).only_here
    assert describe_mix("nobody/Registers-v0").unknown_here == "nobody/Registers-v0"


@pytest.mark.parametrize(
    ("env", "kwargs", "field"),
    [
        ([], None, "environments"),
        ([(Echo,)], None, "environments"),
        (["bandit/Bandit-v0"], None, "environments"),
        ([(Echo, 1.0)], {"size": 2}, "env_kwargs"),
        ([(Echo, -1)], None, "environments.0.weight"),
        ([(Echo, float("nan"))], None, "environments.0.weight"),
        ([(Echo, 0.5), (Other, "half")], None, "environments.1.weight"),
    ],
)
def test_rejects_what_is_no_mix(env, kwargs, field):
    with pytest.raises(InvalidRequestError) as caught:
        describe_mix(env, kwargs)
    assert caught.value.field == field


def test_plays_existing_job_with_the_classes_it_started_with():
    spec = job_of(describe_mix([(Echo, 0.5, {"size": 3}), (Other, 0.5)]))
    make = makers_of([Echo, (Other, 0.5)], spec)
    made = [make(ref).unwrapped for ref in spec.own_environments.values()]
    assert [(type(env), env.size) for env in made] == [(Echo, 3), (Other, 1)]


def test_rejects_environments_that_are_not_the_jobs():
    spec = job_of(describe_mix([(Echo, 0.5), (Other, 0.5)]))

    class Stranger(Echo):
        pass

    with pytest.raises(InvalidRequestError) as caught:
        makers_of([Echo, Stranger], spec)
    assert caught.value.field == "env"
    with pytest.raises(InvalidRequestError):
        makers_of([Echo, Other], RLSpec(environment=EnvironmentRef(id="bandit/Bandit-v0"), steps=1))
