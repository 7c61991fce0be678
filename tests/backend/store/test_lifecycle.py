"""Pausing, resuming, budgets and changed settings, as far as the store decides them."""

import pytest

from backend.errors import LeaseLostError
from tinkergym.errors import ConflictError, InvalidRequestError
from tinkergym.schema.events import EvaluationEvent, JobState, StepEvent, UpdateEvent
from tinkergym.schema.jobs.parts import Budget


@pytest.fixture
def ada(store):
    return store.tenant("ada")


@pytest.fixture
def service(store):
    return store.service()


@pytest.fixture
def job_id(ada, spec):
    return ada.create_job(spec, {}).job_id


def step_event(step, tokens=100):
    return StepEvent(
        step=step,
        steps=5,
        policy_version=step,
        loss=0.0,
        sampled_tokens=tokens,
        trained_tokens=tokens,
        tokens_per_second=1.0,
        step_seconds=1.0,
        sampling_seconds=1.0,
        learning_seconds=1.0,
        seconds_left=1.0,
    )


def updates(ada, job_id):
    events = ada.events_after(job_id, 0)
    return [event.body for event in events if isinstance(event.body, UpdateEvent)]


# --- pausing ---


def test_pauses_queued_job_immediately_so_that_no_worker_takes_it(ada, service, job_id):
    assert ada.request_pause(job_id).state is JobState.PAUSED
    assert service.queued_jobs() == []
    assert service.acquire(job_id, "w", 30, now=1000) is None
    assert ada.request_resume(job_id).state is JobState.QUEUED
    assert service.acquire(job_id, "w", 30, now=1000) is not None


def test_pauses_running_job_when_its_worker_sees_the_request(ada, service, job_id):
    lease = service.acquire(job_id, "w", 30, now=1000)
    assert ada.request_pause(job_id).state is JobState.STARTING
    request = service.stop_request(job_id, now=1000)
    assert (bool(request.pause), request.asked, request.cancel) == (True, True, False)
    service.pause(lease, "after step 3", asked=True)
    view = ada.get_job(job_id)
    assert (view.state, view.reason) == (JobState.PAUSED, "after step 3")
    assert service.held_jobs() == []
    with pytest.raises(LeaseLostError):
        service.record_step(lease, step_event(1), "00")


def test_pauses_job_whose_worker_dies_before_seeing_the_request(ada, service, job_id):
    service.acquire(job_id, "w", 30, now=1000)
    ada.request_pause(job_id)
    assert service.requeue_jobs_of("w", "its worker died") == []
    assert ada.get_job(job_id).state is JobState.PAUSED
    # The request is fulfilled: a later death queues it again.
    ada.request_resume(job_id)
    service.acquire(job_id, "w", 30, now=1000)
    assert service.requeue_jobs_of("w", "its worker died") == [job_id]


def test_keeps_job_running_when_pause_is_withdrawn_before_it_begins(ada, service, job_id):
    lease = service.acquire(job_id, "w", 30, now=1000)
    ada.request_pause(job_id)
    ada.request_resume(job_id)
    assert service.stop_request(job_id, now=1000).pause == ""
    # A worker that had seen the first request gives the job up; it waits for a place, not for its owner.
    service.pause(lease, "after step 3", asked=True)
    assert ada.get_job(job_id).state is JobState.QUEUED


def test_cancels_a_paused_job_but_never_changes_an_ended_one(ada, job_id):
    ada.request_pause(job_id)
    assert ada.request_cancel(job_id).state is JobState.CANCELLED
    for change in (ada.request_pause, ada.request_resume):
        with pytest.raises(ConflictError):
            change(job_id)


# --- budgets ---


def budgeted(ada, spec, **budget):
    return ada.create_job(spec.model_copy(update={"budget": Budget(**budget)}), {}).job_id


def test_counts_time_between_heartbeats_while_a_worker_has_the_job(ada, service, clock, job_id):
    lease = service.acquire(job_id, "w", 30, now=1000)
    lease = service.renew(lease, 30, now=1010)
    assert ada.get_job(job_id).used_seconds == 10
    clock.now = 1015
    service.release(lease)
    assert ada.get_job(job_id).used_seconds == 15
    # In the queue nothing counts, nor after the last heartbeat of a worker that died.
    lease = service.acquire(job_id, "w", 30, now=2000)
    service.renew(lease, 30, now=2007)
    clock.now = 2020
    service.requeue_jobs_of("w", "its worker died")
    assert ada.get_job(job_id).used_seconds == 22


def test_counts_sleep_of_machine_no_longer_than_the_lease(ada, service, job_id):
    lease = service.acquire(job_id, "w", 30, now=1000)
    service.renew(lease, 30, now=9000)
    assert ada.get_job(job_id).used_seconds == 30


def test_counts_tokens_of_a_step_once_however_often_repeated(ada, service, job_id):
    lease = service.acquire(job_id, "w", 30, now=1000)
    service.record_step(lease, step_event(1), "00")
    service.record_step(lease, step_event(2), "00")
    service.requeue_jobs_of("w", "its worker died")
    lease = service.acquire(job_id, "w", 30, now=1000)
    event = service.record_step(lease, step_event(2), "00")
    assert event.body.metrics["used/tokens"] == ada.get_job(job_id).used_tokens == 400
    service.record_step(lease, step_event(3), "00")
    evaluation = EvaluationEvent(
        name="e", step=3, policy_version=3, episodes=1, failed_episodes=0, sampled_tokens=50, mean=0.0
    )
    service.append_event(lease, evaluation)
    assert ada.get_job(job_id).used_tokens == 650


@pytest.mark.parametrize(
    ("budget", "used_up"), [({"hours": 0.005}, True), ({"hours": 0.006}, False), ({"tokens": 200}, True)]
)
def test_pauses_job_when_one_of_its_bounds_is_reached(ada, service, spec, budget, used_up):
    job_id = budgeted(ada, spec, **budget)
    lease = service.acquire(job_id, "w", 30, now=1000)
    assert service.stop_request(job_id, now=1000).pause == ""
    service.record_step(lease, step_event(1), "00")
    request = service.stop_request(job_id, now=1018)
    assert (bool(request.pause), request.asked) == (used_up, False)


def test_resumes_job_without_budget_once_it_is_raised(ada, service, spec):
    job_id = budgeted(ada, spec, tokens=200)
    lease = service.acquire(job_id, "w", 30, now=1000)
    service.record_step(lease, step_event(1), "00")
    service.pause(lease, service.stop_request(job_id, now=1000).pause, asked=False)
    assert "200 of 200 tokens" in ada.get_job(job_id).reason
    with pytest.raises(ConflictError) as refused:
        ada.request_resume(job_id)
    assert refused.value.field == "budget"
    view = ada.change_settings(job_id, {"budget": {"tokens": 201}})
    assert view.spec.budget == Budget(tokens=201)
    assert ada.request_resume(job_id).state is JobState.QUEUED
    assert ada.change_settings(job_id, {"budget": None}).spec.budget is None


# --- settings ---


def rates(service, lease, steps):
    from tinkergym.schema.steering import settings_at

    found = []
    for step in steps:
        taken = service.take_updates(lease, step)
        found.append(settings_at(lease.spec, taken, step).algorithm.learning_rate)
    return found


def test_applies_change_with_next_step_and_logs_the_step(ada, service, job_id):
    lease = service.acquire(job_id, "w", 30, now=1000)
    assert rates(service, lease, [1]) == [1e-3]
    service.record_step(lease, step_event(1), "00")
    assert rates(service, lease, [2]) == [1e-3]
    # While the worker learns in step 2, which the store cannot know.
    view = ada.change_settings(job_id, {"learning_rate": 5e-4})
    assert view.spec.algorithm.learning_rate == 5e-4
    assert view.updates[0].from_step is None
    service.record_step(lease, step_event(2), "00")
    assert rates(service, lease, [3]) == [5e-4]
    (event,) = updates(ada, job_id)
    (change,) = event.changes
    assert (event.from_step, change.name, change.old, change.new) == (3, "learning_rate", 1e-3, 5e-4)


def test_keeps_settings_of_steps_repeated_after_a_kill(ada, service, job_id):
    lease = service.acquire(job_id, "w", 30, now=1000)
    service.record_step(lease, step_event(1), "00")
    ada.change_settings(job_id, {"learning_rate": 5e-4})
    service.take_updates(lease, 2)
    service.record_step(lease, step_event(2), "00")
    ada.change_settings(job_id, {"learning_rate": 1e-4})  # no worker has begun a step with it
    service.requeue_jobs_of("w", "its worker died")
    lease = service.acquire(job_id, "w", 30, now=1000)
    assert rates(service, lease, [1, 2, 3]) == [1e-3, 5e-4, 1e-4]
    assert [event.from_step for event in updates(ada, job_id)] == [2, 3]


def test_begins_change_made_without_worker_at_next_new_step(ada, service, job_id):
    lease = service.acquire(job_id, "w", 30, now=1000)
    service.record_step(lease, step_event(1), "00")
    service.pause(lease, "", asked=False)
    assert ada.change_settings(job_id, {"learning_rate": 5e-4}).updates[0].from_step == 2
    assert [event.from_step for event in updates(ada, job_id)] == [2]


def test_counts_change_that_is_sent_twice_as_one(ada, job_id):
    for _ in range(2):
        view = ada.change_settings(job_id, {"learning_rate": 5e-4, "budget": {"hours": 1}})
    assert len(view.updates) == len(updates(ada, job_id)) == 2


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"steps": 9}, "steps"),
        ({"model": "x"}, "model"),
        ({"value_learning_rate": 0.1}, "value_learning_rate"),  # GRPO has none
        ({"learning_rate": -1}, "algorithm.grpo.learning_rate"),
        ({"learning_rate": "fast"}, "algorithm.grpo.learning_rate"),
        ({"budget": {"days": 1}}, "budget.days"),
    ],
)
def test_rejects_unchangeable_setting_by_name_and_changes_nothing(ada, job_id, settings, field):
    with pytest.raises(InvalidRequestError) as refused:
        ada.change_settings(job_id, {"entropy_coefficient": 0.1, **settings})
    assert refused.value.field.split(".")[-1] in field
    assert ada.get_job(job_id).updates == []


def test_refuses_more_changes_than_a_view_shows(ada, job_id, monkeypatch):
    monkeypatch.setattr("backend.store.lifecycle.MOST_UPDATES", 1)
    ada.change_settings(job_id, {"learning_rate": 1e-4})
    with pytest.raises(ConflictError):
        ada.change_settings(job_id, {"learning_rate": 2e-4})
    assert len(ada.get_job(job_id).updates) == 1
