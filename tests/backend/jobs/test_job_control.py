from __future__ import annotations

import dataclasses

import pytest

from backend.errors import LeaseLostError
from tinkergym.schema.episodes import LeaseRequest
from tinkergym.schema.events import JobState


def test_cancels_a_job_that_waits_for_its_client(jobs):
    job_id = jobs.start(client_timeout_seconds=0.2)
    jobs.until_state(job_id, JobState.WAITING_FOR_CLIENT)
    jobs.tenant.request_cancel(job_id)
    jobs.until_state(job_id, JobState.CANCELLED)


def test_keeps_what_a_cancelled_job_learned(jobs):
    job_id = jobs.start(steps=5)
    jobs.play_step(job_id)
    jobs.lease(job_id)
    jobs.tenant.request_cancel(job_id)
    jobs.until_state(job_id, JobState.CANCELLED)
    (kept,) = jobs.events(job_id, "checkpoint")
    assert (kept.step, kept.policy_version, kept.sha256) == (1, 1, jobs.weights(job_id, 1))


def test_stops_a_job_given_to_another_worker_without_further_writes(lab):
    job_id = lab.start()
    requests = lab.lease(job_id)
    results = lab.play(requests)
    assert lab.service.requeue_jobs_of(lab.site.pool_id, "taken away") == [job_id]
    other = lab.service.acquire(job_id, "another", 30.0, 0.0)
    with pytest.raises(LeaseLostError):
        lab.service.renew(dataclasses.replace(other, epoch=other.epoch - 1), 30.0, 0.0)
    lab.until(job_id, lambda: set(lab.submit(job_id, results)) == {"stale"})
    assert lab.service.episodes(job_id, 1) == []
    assert lab.state(job_id) is JobState.STARTING


def test_replays_what_was_stored_and_plays_only_the_rest(jobs):
    job_id = jobs.start(steps=3)
    jobs.play_step(job_id)
    jobs.play_step(job_id)
    third = jobs.lease(job_id)
    jobs.submit(job_id, jobs.play(third[:3]))
    first_time = [jobs.weights(job_id, version) for version in (1, 2)]
    jobs.take_over(job_id)
    left = jobs.lease(job_id)
    assert [request.episode_id for request in left] == [third[3].episode_id]
    assert [jobs.weights(job_id, version) for version in (1, 2)] == first_time
    jobs.submit(job_id, jobs.play(left))
    jobs.until_state(job_id, JobState.COMPLETED)
    assert jobs.events(job_id, "warning") == []
    assert jobs.service.job(job_id).attempt == 2


def test_resumes_by_new_worker_from_the_last_checkpoint(jobs):
    job_id = jobs.start(steps=3, checkpoint_every=1)
    jobs.play_step(job_id)
    jobs.play_step(job_id)
    # The third step's episodes may be handed out before the second one's checkpoint is written.
    jobs.until(job_id, lambda: len(jobs.events(job_id, "checkpoint")) == 2)
    jobs.take_over(job_id)
    assert {request.step for request in jobs.lease(job_id)} == {3}
    assert jobs.events(job_id, "state")[-1].reason == "resumed after step 2"


def test_gives_up_place_of_job_whose_client_stays_away(make_jobs):
    seeded = {"steps": 2, "seed": 7, "deterministic": True}
    undisturbed = make_jobs("undisturbed")
    expected = undisturbed.start(**seeded)
    undisturbed.play_on(expected)
    parked = make_jobs("parked")
    patient = parked.config
    job_id = parked.start(**seeded)
    parked.play_step(job_id)
    requests = parked.lease(job_id)
    parked.submit(job_id, parked.play(requests)[:2])  # of the second step, and then nothing more
    parked.config = patient.model_copy(update={"client_place_seconds": 0.1})
    parked.take_over(job_id)
    parked.until(job_id, lambda: parked.state(job_id) is JobState.WAITING_FOR_CLIENT)
    view = parked.tenant.get_job(job_id)
    assert view.step == 1
    assert not [held for held in parked.service.held_jobs() if held.job_id == job_id]
    assert job_id in view.reason
    parked.service.client_came(job_id)
    parked.config = patient
    parked.take_over(job_id)
    parked.play_on(job_id)
    assert parked.weights(job_id, 2) == undisturbed.weights(expected, 2)


def test_waits_for_silent_client_and_welcomes_it_back(jobs):
    job_id = jobs.start(client_timeout_seconds=0.2, steps=1)
    jobs.until_state(job_id, JobState.WAITING_FOR_CLIENT)
    requests = jobs.lease(job_id)

    def welcomed():
        # On a busy machine the client can be silent for too long again before this thread looks.
        states = [event.state for event in jobs.events(job_id, "state")]
        return JobState.RUNNING in states[states.index(JobState.WAITING_FOR_CLIENT) :]

    jobs.until(job_id, welcomed)
    jobs.submit(job_id, jobs.play(requests))
    jobs.until_state(job_id, JobState.COMPLETED)


def test_fails_job_whose_environment_takes_down_worker_after_worker(jobs):
    job_id = jobs.start(rollout="server")
    for death in range(5):
        request = LeaseRequest(worker_id=f"env-{death}", max_episodes=10, wait_seconds=20.0)
        assert len(jobs.worker.boards.lease(request, job_id).episodes) == 4
        jobs.worker.boards.forget_worker(f"env-{death}")
    jobs.until_state(job_id, JobState.FAILED)
    end = jobs.events(job_id, "state")[-1]
    assert end.error.type == "TooManyFailedEpisodesError"
