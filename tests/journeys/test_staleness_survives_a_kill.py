"""A job that plays ahead, through a service whose pool worker is killed in the middle."""

import pytest

import tinkergym as tg
from tests.journeys.disturbed_job import pool_workers
from tinkergym.schema.events import JobState, StateEvent, StepEvent, WarningEvent

pytestmark = [pytest.mark.service, pytest.mark.full("kills a worker of Ray")]


def test_resumes_job_playing_ahead_after_kill_and_keeps_its_bound(client):
    job = client.train(
        "board/TicTacToeVs-v0",
        steps=4,
        max_staleness=1,
        algorithm=tg.GRPO(group_size=4, groups_per_step=4),
    )
    killed, events = False, []
    for event in job.events():
        events.append(event.body)
        if not killed and isinstance(event.body, StepEvent) and event.body.step == 2:
            for pool in pool_workers():
                pool.kill()
            killed = True
    assert job.wait().state is JobState.COMPLETED
    steps = [body for body in events if isinstance(body, StepEvent)]
    assert [step.step for step in steps if step.step > 2] == [3, 4]
    assert {step.step for step in steps} == {1, 2, 3, 4}
    assert all(step.metrics["staleness_max"] <= 1.0 for step in steps)
    assert all(step.metrics["too_stale_episodes"] == 0.0 and step.failed_episodes == 0 for step in steps)
    assert max(step.metrics["parity_max"] for step in steps) <= 1e-5
    assert [body.attempt for body in events if isinstance(body, StateEvent)][-1] == 2
    assert [body.name for body in events if isinstance(body, WarningEvent)] == []
