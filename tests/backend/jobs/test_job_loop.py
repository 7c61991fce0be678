"""How a job goes on, or ends, when something breaks off its attempt."""

from __future__ import annotations

import threading

import pytest
import torch

from backend.engines.transformers.transformers_engine import TransformersEngine
from backend.errors import BlobsUnavailableError
from backend.jobs import job_loop
from backend.learner.learner import Learner
from backend.store.store import ServiceStore
from tests.backend.scripted_policy import ScriptedPolicy
from tinkergym.errors import InternalServiceError, ServiceUnavailableError
from tinkergym.schema.events import JobState

ROWS = [{"prompt": f"{a}?", "completion": f"it is {a}"} for a in range(4)]


def lock_database(monkeypatch, write, *, times):
    """Refuse a write of step 3, as often as that."""
    written, refused = getattr(ServiceStore, write), []

    def maybe(store, lease, *arguments, **named):
        if store.job(lease.job_id).step == (2 if write == "record_step" else 3) and len(refused) < times:
            refused.append(write)
            raise ServiceUnavailableError("another process locked the database for 15 s")
        return written(store, lease, *arguments, **named)

    monkeypatch.setattr(ServiceStore, write, maybe)


def until_it_ends(lab, job_id):
    """Do what the scheduler does: give the job to the pool whenever it is queued."""

    def ended():
        if lab.state(job_id) is JobState.QUEUED:
            lab.start_job(job_id)
        return lab.state(job_id).final

    lab.until(job_id, ended)


def test_resumes_from_checkpoint_after_the_database_was_locked_briefly(jobs, written_jobs, monkeypatch):
    lock_database(monkeypatch, "record_step", times=4)
    job_id = written_jobs.start("sft", ROWS, steps=4, checkpoint_every=2)
    until_it_ends(jobs, job_id)
    assert jobs.state(job_id) is JobState.COMPLETED, jobs.events(job_id, "state")[-1]
    assert [event.step for event in jobs.events(job_id, "step")] == [1, 2, 3, 4]
    reasons = [event.reason for event in jobs.events(job_id, "state")]
    assert reasons.count("a part of the service was not available; resumes from the last checkpoint") == 4
    assert reasons.count("resumed after step 2") == 4
    warnings = [event for event in jobs.events(job_id, "warning") if event.name == "service_unavailable"]
    assert len(warnings) == 4
    assert "locked the database" in warnings[0].message


def test_keeps_recorded_steps_since_the_checkpoint_after_a_lock(jobs, written_jobs, monkeypatch):
    lock_database(monkeypatch, "append_events", times=1)
    job_id = written_jobs.start("sft", ROWS, steps=4)
    until_it_ends(jobs, job_id)
    assert jobs.state(job_id) is JobState.COMPLETED, jobs.events(job_id, "state")[-1]
    assert [event.step for event in jobs.events(job_id, "step")] == [1, 2, 3, 4]
    assert "resumed after step 3" in [event.reason for event in jobs.events(job_id, "state")]


def test_ends_job_in_fifth_attempt_when_service_stays_unavailable(jobs, written_jobs, monkeypatch):
    lock_database(monkeypatch, "record_step", times=5)
    job_id = written_jobs.start("sft", ROWS, steps=4)
    until_it_ends(jobs, job_id)
    end = jobs.events(job_id, "state")[-1]
    assert (end.state, end.attempt) == (JobState.FAILED, 5)
    assert end.error.type == "ServiceUnavailableError"


class WithBlobsAway(ScriptedPolicy):
    """Its checkpoints can be neither read nor written while `away` is set."""

    away = threading.Event()

    def restore(self, at_most=None):
        self._look()
        return super().restore(at_most)

    def save(self, step, *, version=None):
        self._look()
        super().save(step, version=version)

    def _look(self):
        if self.away.is_set():
            raise BlobsUnavailableError("blob store unavailable: it is away")


@pytest.fixture
def away(jobs):
    """Set while the blobs are away."""
    jobs.policy_class = WithBlobsAway
    yield WithBlobsAway.away
    WithBlobsAway.away.clear()


def waits_for_blobs(jobs, job_id):
    return jobs.service.job(job_id).reason == "blob store unavailable: it is away"


def test_waits_while_blobs_are_away_and_repeats_nothing(jobs, away):
    job_id = jobs.start(steps=3, checkpoint_every=1)
    jobs.play_step(job_id)
    jobs.until(job_id, lambda: len(jobs.events(job_id, "checkpoint")) == 1)
    away.set()
    jobs.play_step(job_id)
    jobs.until(job_id, lambda: waits_for_blobs(jobs, job_id))
    away.clear()
    jobs.play_on(job_id)
    assert jobs.state(job_id) is JobState.COMPLETED, jobs.events(job_id, "state")[-1]
    assert [event.step for event in jobs.events(job_id, "step")] == [1, 2, 3]
    assert (jobs.service.job(job_id).attempt, jobs.events(job_id, "warning")) == (1, [])


def test_starts_nothing_over_when_blobs_are_away_at_resume(jobs, away):
    job_id = jobs.start(steps=3, checkpoint_every=1)
    jobs.play_step(job_id)
    jobs.until(job_id, lambda: len(jobs.events(job_id, "checkpoint")) == 1)
    away.set()
    jobs.take_over(job_id)
    jobs.until(job_id, lambda: waits_for_blobs(jobs, job_id))
    away.clear()
    jobs.play_on(job_id)
    assert "resumed after step 1" in [event.reason for event in jobs.events(job_id, "state")]


def test_cancels_job_that_waits_for_blobs(jobs, away):
    away.set()
    job_id = jobs.start(steps=3)
    jobs.until(job_id, lambda: waits_for_blobs(jobs, job_id))
    jobs.tenant.request_cancel(job_id)
    jobs.until(job_id, lambda: jobs.state(job_id) is JobState.CANCELLED)


def test_fails_no_job_by_what_fails_during_worker_shutdown(lab, written, monkeypatch):
    inside, go_on = threading.Event(), threading.Event()

    def closed(*_, **__):
        inside.set()
        assert go_on.wait(120)
        raise InternalServiceError("the data-parallel group is closed", hint="start another")

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "forward_backward", closed)
        job_id = written.start("sft", ROWS, steps=4)
        assert inside.wait(120)
        lab.pool.jobs.pulses[job_id].control.stop()
        go_on.set()
        lab.until(job_id, lambda: lab.state(job_id) in {JobState.QUEUED, JobState.FAILED})
    assert lab.service.job(job_id).reason == "its worker stopped"
    until_it_ends(lab, job_id)
    assert lab.state(job_id) is JobState.COMPLETED


@pytest.mark.parametrize("allocate", [lambda: bytearray(2**60), lambda: torch.empty(2**60)])
def test_ends_only_the_job_that_finds_no_memory(lab, written, monkeypatch, allocate):
    with monkeypatch.context() as patch:
        patch.setattr(Learner, "forward_backward", lambda *_, **__: allocate())
        job_id = written.start("sft", ROWS, steps=2)
        until_it_ends(lab, job_id)
    error = lab.events(job_id, "state")[-1].error
    assert (lab.state(job_id), error.code) == (JobState.FAILED, "out_of_memory")
    job_id = written.start("sft", ROWS, steps=2)
    until_it_ends(lab, job_id)
    assert lab.state(job_id) is JobState.COMPLETED


def test_resumes_the_job_of_a_worker_without_memory(lab, written, monkeypatch):
    ended = []

    def end(error, *, first=lambda: None):
        assert isinstance(error, MemoryError)
        first()
        ended.append(lab.state(job_id))

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "forward_backward", lambda *_, **__: bytearray(2**60))
        patch.setattr(job_loop, "end_if_exhausted", end)
        job_id = written.start_later("sft", ROWS, steps=2)
        lab.pool.start_job(job_id)
        lab.until_state(job_id, JobState.QUEUED)
        lab.until(job_id, lambda: ended)
    assert ended[0] is JobState.QUEUED
    assert [one.name for one in lab.events(job_id, "warning")] == ["out_of_memory"]
    until_it_ends(lab, job_id)
    assert lab.state(job_id) is JobState.COMPLETED


@pytest.mark.parametrize("arrives_as", ["other weights", "the version before", "nothing"])
def test_ends_job_when_engine_holds_other_weights_than_were_published(lab, monkeypatch, arrives_as):
    publish = TransformersEngine.publish

    def published(self, policy, version, weights, **settings):
        held = version - 1 if version == 2 and arrives_as == "the version before" else version
        arrived = publish(self, policy, held, weights, **settings)
        if version == 2 and arrives_as == "nothing":
            self.retire(policy)
        return "0" * 64 if version == 2 and arrives_as == "other weights" else arrived

    monkeypatch.setattr(TransformersEngine, "publish", published)
    job_id = lab.start(steps=4)
    lab.play_on(job_id)
    end = lab.events(job_id, "state")[-1]
    assert (end.state, end.error.type) == (JobState.FAILED, "ParityError")
    # The step whose version did not arrive is not taken for done.
    assert [event.step for event in lab.events(job_id, "step")] == [1]
