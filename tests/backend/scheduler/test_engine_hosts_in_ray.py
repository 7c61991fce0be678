"""A service whose model has two engines, and the process of one of them killed."""

from __future__ import annotations

import shutil
import time

import pytest

from tests.backend.scheduler.hosts import STEPS, Host
from tinkergym.schema.events import JobState

pytestmark = [pytest.mark.service, pytest.mark.full("starts Ray for itself, with two engines")]


@pytest.fixture(scope="module")
def two_engines(tmp_path_factory):
    placement = {"engines": 2, "gpus": 0}
    host = Host(tmp_path_factory.mktemp("service"), placement=placement, torch_threads=1)
    yield host
    if host.process.poll() is None:
        assert host.stop() == 0
    host.store.close()
    shutil.rmtree(host.config.run_dir)


def test_completes_jobs_whose_engine_host_is_killed_and_leaves_nothing(two_engines):
    host = two_engines
    host.until(lambda: host.service.pools(time.time()))
    host.until(lambda: host.service.engine_hosts())
    (first,) = host.service.engine_hosts()
    # Deterministic jobs sample on the pool's own engine only.
    job_id = host.submit(deterministic=False)
    host.until(lambda: host.service.job(job_id).step >= 1)
    host.find("EngineHostProcess").kill()
    host.until(lambda: host.service.job(job_id).state.final)
    job = host.service.job(job_id)
    assert (job.state, job.attempt) == (JobState.COMPLETED, 1), job.reason
    events = [event.body for event in host.tenant.events_after(job_id, 0, 1000)]
    assert [one.failed_episodes for one in events if one.type == "step"] == [0] * STEPS
    host.until(lambda: {one.engine_id for one in host.service.engine_hosts()} - {first.engine_id})
    assert host.stop() == 0
    assert host.service.engine_hosts() == []
    assert not list(host.config.run_dir.glob("engine-*"))
