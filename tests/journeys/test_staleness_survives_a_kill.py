"""A job that plays ahead, through a service whose pool worker is killed in the middle."""

import contextlib
import os
import signal

import psutil
import pytest

import tinkergym as tg
from tinkergym.schema.events import JobState, StateEvent, StepEvent, WarningEvent

pytestmark = [pytest.mark.service, pytest.mark.full("kills a worker of Ray")]


def kill_pool_workers():
    """Kill those below this process: Ray names an actor's process after its class."""
    killed = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if words and words[0].startswith("ray::PoolProcess"):
                os.kill(process.pid, signal.SIGKILL)
                killed += 1
    return killed


def test_resumes_job_playing_ahead_after_kill_and_keeps_its_bound(client):
    job = client.train(
        "board/TicTacToeVs-v0",
        steps=4,
        max_staleness=1,
        algorithm=tg.GRPO(group_size=4, groups_per_step=4),
    )
    killed, events = 0, []
    for event in job.events():
        events.append(event.body)
        if not killed and isinstance(event.body, StepEvent) and event.body.step == 2:
            killed = kill_pool_workers()
            assert killed  # other tests may have left pools of their own
    assert job.wait().state is JobState.COMPLETED
    steps = [body for body in events if isinstance(body, StepEvent)]
    assert [step.step for step in steps if step.step > 2] == [3, 4]
    assert {step.step for step in steps} == {1, 2, 3, 4}
    assert all(step.metrics["staleness_max"] <= 1.0 for step in steps)
    assert all(step.metrics["too_stale_episodes"] == 0.0 and step.failed_episodes == 0 for step in steps)
    assert max(step.metrics["parity_max"] for step in steps) <= 1e-5
    assert [body.attempt for body in events if isinstance(body, StateEvent)][-1] == 2
    assert [body.name for body in events if isinstance(body, WarningEvent)] == []
