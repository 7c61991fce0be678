"""`train` with several environments: who plays, what is refused, and attaching again."""

from __future__ import annotations

import pytest

import tinkergym as tg
from tinkergym.errors import InvalidRequestError, UnknownEnvironmentError

SMALL = tg.GRPO(group_size=2, groups_per_step=8)
BOARD = "board/TicTacToeVs-v0"


class Echo(tg.SingleTurnEnv):
    def __init__(self, pay=1.0):
        super().__init__()
        self.pay = pay

    def ask(self, options):
        return "Say ok."

    def score(self, answer):
        return self.pay * (answer == "ok")


class Other(Echo):
    def ask(self, options):
        return "Say ok, please."


def returns(service, job):
    history = service.jobs.get(job.id).history
    return {result.trajectory.episode_return for step in history for result in step}


def test_makes_each_class_with_its_own_arguments(service, client):
    job = client.train([(Echo, 0.5), (Other, 0.25), (Echo, 0.25, {"pay": 5.0})], steps=2, algorithm=SMALL)
    job.wait()
    assert returns(service, job) == {1.0, 5.0}
    assert list(job.spec.own_environments) == ["local/Echo-v0", "local/Other-v0", "local/Echo-v0[pay=5.0]"]
    first = {result.trajectory.transcript[0][1] for result in service.jobs.get(job.id).history[0]}
    assert first == {"Say ok.", "Say ok, please."}


def test_plays_environments_there_that_the_service_knows(start_service, connect):
    start_service(environments=[BOARD, "bandit/Bandit-v0"])
    job = connect().train([(BOARD, 3), ("bandit/Bandit-v0", 1)], steps=1)
    assert job.spec.rollout == "server"


def test_takes_one_of_a_list_as_one_environment(client):
    job = client.train([(Echo, 0.3)], steps=1, algorithm=SMALL)
    assert (job.spec.environments, job.spec.environment.id) == ([], "local/Echo-v0")
    job.wait()


@pytest.mark.parametrize(
    ("env", "settings", "field"),
    [
        ([(Echo, 0.0), (Other, 1.0)], {}, "environments.0.weight"),
        ([(Echo, 1.0), (Echo, 1.0)], {}, "environments"),
        ([Echo, Other], {}, "environments"),
        ([], {}, "environments"),
        ([(Echo, 1.0), (Other, 1.0)], {"env_kwargs": {"pay": 2.0}}, "env_kwargs"),
        ([(Echo, 1.0), (Other, 1.0)], {"rollout": "server"}, "rollout"),
        ([(Echo, 1.0), (Other, 1.0)], {"environments": []}, "environments"),
    ],
)
def test_rejects_meaningless_list(client, env, settings, field):
    with pytest.raises(InvalidRequestError) as caught:
        client.train(env, steps=1, **settings)
    assert caught.value.field == field
    assert client.jobs() == []


def test_names_unknown_id(client):
    with pytest.raises(UnknownEnvironmentError):
        client.train([(Echo, 1.0), ("pack/Nowhere-v0", 1.0)], steps=1)


def test_attaches_job_of_several_classes_with_all_of_them(service, client):
    job = client.train([(Echo, 1.0), (Other, 1.0, {"pay": 3.0})], steps=200, algorithm=SMALL)
    job.close()
    with pytest.raises(UnknownEnvironmentError):
        client.attach(job.id, Echo)
    with pytest.raises(InvalidRequestError) as caught:
        client.attach(job.id, [Echo, Other, BOARD])
    assert caught.value.field == "env"
    again = client.attach(job.id, [Echo, Other])
    again.cancel()
    again.close()
