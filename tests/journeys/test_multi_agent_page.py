"""The tutorial on training agents against each other, with few and short games."""

import re
from pathlib import Path

import pytest

import tinkergym as tg
from tinkergym.schema.events import JobState

pytestmark = pytest.mark.service

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "multi_agent.md"
SHORT = {
    "steps": 2,
    "algorithm": tg.GRPO(group_size=2, groups_per_step=2),
    "sampling": tg.Sampling(max_turn_tokens=4),
    "env_kwargs": {"on_illegal": "random"},
    # A game of Gomoku would be long.
    "limits": {"max_turns": 3},
}


class ShortClient:
    """Trains a page's jobs for two steps."""

    def __init__(self, client):
        self._client = client
        self.jobs = []

    def train(self, env, **settings):
        if "evaluate" in settings:
            settings["evaluate"] = settings["evaluate"].model_copy(update={"steps": 1, "episodes": 2})
        self.jobs.append(self._client.train(env, **{**settings, **SHORT}))
        return self.jobs[-1]


@pytest.mark.full("trains two jobs as other tests of games do")
def test_trains_the_pages_jobs_to_their_end(client):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    names = {}
    for block in blocks:
        exec(block, names)
    short = ShortClient(client)
    # The other jobs of the page have opponents that other tests play against.
    for name in ("train_both", "measured"):
        names[name](short)
    assert [job.wait(progress=False).state for job in short.jobs] == [JobState.COMPLETED] * 2
    for job in short.jobs:
        steps = job.steps()
        assert [step.failed_episodes for step in steps] == [0, 0]
        assert all(step.reward_means() for step in steps)
    assert {done.agent for done in short.jobs[-1].evaluations()} == {"x"}
