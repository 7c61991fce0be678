from __future__ import annotations

import dataclasses

import pytest

from backend.errors import LeaseLostError
from tinkergym.schema.events import JobState
from tinkergym.schema.sampling import SampleRequest


def test_cancels_a_job_that_waits_for_its_client(lab):
    job_id = lab.start(client_timeout_seconds=0.2)
    lab.until_state(job_id, JobState.WAITING_FOR_CLIENT)
    lab.tenant.request_cancel(job_id)
    lab.until_state(job_id, JobState.CANCELLED)


def test_keeps_what_a_cancelled_job_learned(lab):
    job_id = lab.start(steps=5)
    lab.play_step(job_id)
    lab.lease(job_id)
    lab.tenant.request_cancel(job_id)
    lab.until_state(job_id, JobState.CANCELLED)
    assert [checkpoint.step for checkpoint in lab.events(job_id, "checkpoint")] == [1]
    assert sample(lab, job_id).policy_version == 1


def test_stops_a_job_given_to_another_worker_without_further_writes(lab):
    job_id = lab.start()
    requests = lab.lease(job_id)
    results = lab.play(requests)
    assert lab.service.requeue_worker(lab.site.pool_id, "taken away") == [job_id]
    other = lab.service.acquire(job_id, "another", 30.0, 0.0)
    with pytest.raises(LeaseLostError):
        lab.service.renew(dataclasses.replace(other, epoch=other.epoch - 1), 30.0, 0.0)
    lab.until(job_id, lambda: set(lab.submit(job_id, results)) == {"stale"})
    assert lab.service.episodes(job_id, 1) == []
    assert lab.state(job_id) is JobState.STARTING


def sample(lab, policy, version=None):
    arrived = []
    request = SampleRequest(
        request_id="r", policy=policy, policy_version=version, prompt_ids=[5, 6, 7], max_tokens=4, seed=1
    )
    sampler = lab.transport("").sampler()
    sampler.submit([request], arrived.extend)
    lab.until(policy, lambda: arrived)
    sampler.close()
    return arrived[0]
