from __future__ import annotations

import dataclasses

import pytest

from backend.errors import LeaseLostError
from tinkergym.schema.episodes import LeaseRequest
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


def test_replays_what_was_stored_and_plays_only_the_rest(lab):
    job_id = lab.start(steps=3)
    lab.play_step(job_id)
    lab.play_step(job_id)
    third = lab.lease(job_id)
    lab.submit(job_id, lab.play(third[:3]))
    first_time = [lab.weights(job_id, version) for version in (1, 2)]
    lab.replace_pool()
    lab.pool.start_job(job_id)
    left = lab.lease(job_id)
    assert [request.episode_id for request in left] == [third[3].episode_id]
    assert [lab.weights(job_id, version) for version in (1, 2)] == first_time
    lab.submit(job_id, lab.play(left))
    lab.until_state(job_id, JobState.COMPLETED)
    assert lab.events(job_id, "warning") == []
    assert lab.service.job(job_id).attempt == 2


def test_resumes_by_new_worker_from_the_last_checkpoint(lab):
    job_id = lab.start(steps=3, checkpoint_every=1)
    lab.play_step(job_id)
    lab.play_step(job_id)
    # The third step's episodes may be handed out before the second one's checkpoint is written.
    lab.until(job_id, lambda: len(lab.events(job_id, "checkpoint")) == 2)
    lab.replace_pool()
    lab.pool.start_job(job_id)
    assert {request.step for request in lab.lease(job_id)} == {3}
    assert lab.events(job_id, "state")[-1].reason == "resumed after step 2"


def test_gives_up_place_of_job_whose_client_stays_away(make_lab):
    seeded = {"steps": 2, "seed": 7, "deterministic": True}
    undisturbed = make_lab("undisturbed")
    expected = undisturbed.start(**seeded)
    undisturbed.play_on(expected)
    lab = make_lab("parked", client_place_seconds=3.0)
    job_id = lab.start(**seeded)
    lab.play_step(job_id)
    requests = lab.lease(job_id)
    lab.submit(job_id, lab.play(requests)[:2])  # of the second step, and then nothing more
    lab.until(job_id, lambda: not lab.service.held_jobs())
    view = lab.tenant.get_job(job_id)
    assert (view.state, view.step) == (JobState.WAITING_FOR_CLIENT, 1)
    assert job_id in view.reason
    lab.service.client_came(job_id)
    # The scheduler, too, asks until a pool has the job: the thread that gave it up may not have ended yet.
    lab.until(job_id, lambda: lab.pool.start_job(job_id) or lab.service.held_jobs())
    lab.play_on(job_id)
    assert lab.weights(job_id, 2) == undisturbed.weights(expected, 2)


def test_waits_for_silent_client_and_welcomes_it_back(lab):
    job_id = lab.start(client_timeout_seconds=0.2, steps=1)
    lab.until_state(job_id, JobState.WAITING_FOR_CLIENT)
    requests = lab.lease(job_id)
    lab.until_state(job_id, JobState.RUNNING)
    lab.submit(job_id, lab.play(requests))
    lab.until_state(job_id, JobState.COMPLETED)


def test_fails_job_whose_environment_takes_down_worker_after_worker(lab):
    job_id = lab.start(rollout="server")
    for death in range(5):
        request = LeaseRequest(worker_id=f"env-{death}", max_episodes=10, wait_seconds=20.0)
        assert len(lab.transport(job_id).lease(request).episodes) == 4
        lab.pool.env_worker_ended(f"env-{death}")
    lab.until_state(job_id, JobState.FAILED)
    end = lab.events(job_id, "state")[-1]
    assert end.error.type == "TooManyFailedEpisodesError"
