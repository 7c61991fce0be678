import tinkergym as tg
from tinkergym.testing import FakeConnection


class Echo(tg.SingleTurnEnv):
    def ask(self, options):
        return "Say ok."

    def score(self, answer):
        return float(answer == "ok")


def test_plays_a_job_without_a_service():
    with tg.Client(connection=FakeConnection()) as client:
        job = client.train(Echo, steps=2, algorithm=tg.GRPO(group_size=2, groups_per_step=2))
        assert job.wait(progress=False).step == 2
        assert [(step.reward_mean, step.episodes) for step in job.steps()] == [(1.0, 4)] * 2


def test_finishes_a_job_of_the_service():
    with tg.Client(connection=FakeConnection()) as client:
        assert client.train("board/TicTacToeVs-v0", steps=3).wait(progress=False).step == 3
