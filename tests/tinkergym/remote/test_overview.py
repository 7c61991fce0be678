import pytest

from tinkergym.remote.overview import next_commands
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec
from tinkergym.schema.jobs.view import JobView


@pytest.mark.parametrize(
    ("state", "first"),
    [
        (JobState.RUNNING, "tinkergym jobs watch job-1"),
        (JobState.PAUSED, "tinkergym jobs resume job-1"),
        (JobState.WAITING_FOR_CLIENT, "tinkergym jobs attach job-1 --env MODULE:Mine"),
        (JobState.FAILED, "tinkergym jobs logs job-1"),
    ],
)
def test_says_what_to_type_next(state, first):
    spec = RLSpec(environment=EnvironmentRef(id="local/Mine-v0"), steps=2, rollout="client")
    view = JobView(job_id="job-1", spec=spec, state=state, step=1, created_at=0, updated_at=0)
    commands = list(next_commands(view, has_checkpoint=True).values())
    assert commands[0] == first
    assert any("export job-1" in command for command in commands)
