"""Agent programs as jobs: what is refused before they start, and how they are played."""

import pytest

import tinkergym as tg
from tests.tinkergym.recording.sessions import said, user
from tinkergym.errors import InvalidRequestError

SMALL = tg.GRPO(group_size=2, groups_per_step=1)


def play(session):
    said(session, user(f"Say {session.task}"))
    return 1.0


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"play": 3}, "play"),
        ({"tasks": []}, "tasks"),
        ({"tasks": {"train": []}}, "tasks.train"),
        ({"tasks": 3}, "tasks"),
        ({"roles": {}}, "roles"),
        ({"roles": {"a b": tg.Train()}}, "agents.a b"),
        ({"roles": {"a": tg.opponents.Base()}}, "agents"),
        ({"steps": None}, "steps"),
        ({"play": None, "strict": True}, "strict"),
        ({"system_prompt": "x"}, "system_prompt"),
        ({"deterministic": True}, "deterministic"),
        ({"rollout": "server"}, "rollout"),
        ({"colour": 1}, "colour"),
        ({"evaluate": tg.EvaluateEvery(1, split="test")}, "evaluate"),
    ],
)
def test_refuses_by_name_what_a_program_cannot_have(client, changes, field):
    given = {"play": play, "tasks": ["a"], "steps": 1, **changes}
    with pytest.raises(InvalidRequestError) as refused:
        client.train_agent(**given)
    assert refused.value.field.startswith(field)
    assert client.jobs() == []


def test_plays_tasks_and_attaches_a_second_process(client, service):
    job = client.train_agent(play, [{"n": 1}], steps=1, algorithm=SMALL)
    job.wait()
    (first, *_) = service.jobs.get(job.id).results
    assert first.trajectory.transcript[0] == ("user", "Say {'n': 1}")
    assert client.attach_agent(job.id, play, [{"n": 1}]).view().state == "completed"
    with pytest.raises(InvalidRequestError) as refused:
        client.attach_agent(job.id, lambda session: 1.0)
    assert refused.value.field == "play"


def test_means_over_episodes_unless_told_otherwise(client):
    def aggregation(algorithm):
        job = client.train_agent(play, ["a"], steps=1, algorithm=algorithm)
        job.wait()
        return job.spec.algorithm.aggregation

    small = {"group_size": 2, "groups_per_step": 1}
    given = [small, tg.GRPO(**small), tg.GRPO(**small, aggregation="token")]
    assert [aggregation(one) for one in given] == ["sequence", "sequence", "token"]
