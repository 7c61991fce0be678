"""Bundles of finished and of running jobs, as a client writes them."""

from __future__ import annotations

import pytest

from tests.tinkergym.certificates.made_run import Run
from tinkergym.certificates import verify
from tinkergym.schema.events import JobState
from tinkergym.testing.made_up_episodes import stored_record


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.PAUSED, JobState.CANCELLED])
def test_bundles_whole_certificate_in_the_middle_of_a_step(tmp_path, state):
    arrived, later = stored_record(0, 1.0, step=2), stored_record(1, 1.0, step=2)
    run = Run(state=state, done=1, in_progress=[arrived])
    found = verify(run.bundle(tmp_path, stored=[*run.episodes[1], arrived, later]))
    assert found.problems == []
    lost = verify(run.bundle(tmp_path, stored=[*run.episodes[1], later]))
    assert lost.problems
    assert all("step-000002" in problem for problem in lost.problems)
