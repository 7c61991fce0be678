import sys

import pytest

import tinkergym as tg
from tinkergym.errors import MissingExtraError
from tinkergym.schema.events import JobState

SMALL = tg.GRPO(group_size=2, groups_per_step=2)


class Echo(tg.SingleTurnEnv):
    def ask(self, options):
        return f"<b>{self.np_random.integers(100)}</b> & more?"

    def score(self, answer):
        return float(self.np_random.integers(3)), {"length": float(len(answer))}


@pytest.fixture
def job(client):
    job = client.train(Echo, steps=3, algorithm=SMALL)
    yield job
    job.close()


def test_turns_figures_into_tables(job, client):
    job.wait()
    steps = job.to_pandas()
    assert list(steps["step"]) == [1, 2, 3]
    assert list(steps["reward_mean"]) == [step.reward_mean for step in job.steps()]
    evaluation = client.policy("nano").evaluate(Echo, episodes=4, seed=7)
    episodes = evaluation.to_pandas()
    assert list(episodes["seed"]) == [7, 8, 9, 10]
    assert episodes["return"].mean() == evaluation.mean
    assert episodes["length"].mean() == evaluation.metrics["length"]


def test_shows_steps_of_a_running_job_so_far_immediately(client, service):
    job = client.train(Echo, steps=10_000, algorithm=SMALL)
    for event in job.events():
        if event.body.type == "step" and event.body.step == 2:
            break
    assert [step.step for step in job.steps()][:2] == [1, 2]
    service.jobs.end(job.id, JobState.CANCELLED)
    job.close()


def test_names_pandas_when_it_is_missing(job, client, monkeypatch):
    evaluation = client.policy("nano").evaluate(Echo, episodes=2)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError):
        evaluation.to_pandas()
