import pytest

from backend.errors import LeaseLostError
from tinkergym.schema.events import CheckpointView, ErrorView, JobState, StepEvent, WarningEvent


@pytest.fixture
def lease(store, spec):
    return store.service().acquire(store.tenant("ada").create_job(spec, {}).job_id, "w", 30, now=0)


def step_event(step):
    return StepEvent(
        step=step,
        steps=5,
        policy_version=step,
        reward_mean=0.5,
        reward_std=0.1,
        loss=-0.01,
        episodes=8,
        failed_episodes=0,
        stop_reasons={"terminated": 8},
        sampled_tokens=100,
        turns=20,
        tokens_per_second=50.0,
        step_seconds=2.0,
        sampling_seconds=1.0,
        learning_seconds=1.0,
        seconds_left=8.0,
    )


def checkpoint(step):
    return CheckpointView(
        step=step, policy_version=step, path=f"/x/{step}", sha256="00", files={"manifest.json": 9}
    )


def test_shows_step_in_job_events_and_hash_of_its_version(store, lease):
    service = store.service()
    service.record_step(lease, step_event(1), "aa")
    event = service.record_step(lease, step_event(2), "bb")
    job = service.job(lease.job_id)
    assert (job.step, job.policy_version) == (2, 2)
    assert (service.version_sha256(lease.job_id, 1), service.version_sha256(lease.job_id, 2)) == ("aa", "bb")
    assert service.version_sha256(lease.job_id, 3) is None
    assert store.tenant("ada").events_after(lease.job_id, event.seq - 1) == [event]


def test_counts_a_repeated_step_as_it_was_done_last(store, lease):
    service = store.service()
    for sha256 in ("aa", "bb"):
        service.record_step(lease, step_event(1), sha256)
    assert service.version_sha256(lease.job_id, 1) == "bb"


def test_marks_steps_recorded_by_an_earlier_attempt(store, lease):
    service = store.service()
    for step in (1, 2):
        service.record_step(lease, step_event(step), "aa")
    again = service.acquire(lease.job_id, "w2", 30, now=1000)
    warnings = [WarningEvent(name="slow", message="", step=step) for step in (0, 2, 3)]
    logged = [service.record_step(again, step_event(step), "aa") for step in (2, 3)]
    logged += [*service.append_events(again, warnings), service.append_event(again, warnings[1])]
    marks = [event.body.repeated for event in logged]
    assert marks == [True, False, False, True, False, True]


def test_keeps_error_of_a_failure_for_whoever_asks_later(store, lease):
    error = ErrorView(type="PromptTooLongError", message="m", hint="h", field="f")
    store.service().set_state(lease, JobState.FAILED, "too long", error)
    job = store.tenant("ada").get_job(lease.job_id)
    assert (job.state, job.reason, job.error) == ("failed", "too long", error)


def test_logs_nothing_after_the_end(store, lease):
    service = store.service()
    service.set_state(lease, JobState.COMPLETED)
    for write in (
        lambda: service.append_event(lease, WarningEvent(name="n", message="m")),
        lambda: service.record_step(lease, step_event(1), "aa"),
        lambda: service.add_checkpoint(lease, checkpoint(1)),
    ):
        with pytest.raises(LeaseLostError):
            write()
    assert store.tenant("ada").events_after(lease.job_id, 0)[-1].body.state == "completed"


def test_logs_several_events_in_order(store, lease):
    bodies = [WarningEvent(name=str(number), message="m") for number in range(3)]
    logged = store.service().append_events(lease, bodies)
    assert [event.body for event in logged] == bodies
    assert store.tenant("ada").events_after(lease.job_id, logged[0].seq - 1) == logged


def test_adds_replaces_and_removes_checkpoints(store, lease):
    service = store.service()
    for step in (10, 5):
        service.add_checkpoint(lease, checkpoint(step))
    again = checkpoint(5).model_copy(update={"sha256": "11"})
    service.add_checkpoint(lease, again)
    assert service.checkpoints(lease.job_id) == [again, checkpoint(10)]
    assert store.tenant("ada").checkpoints(lease.job_id) == [again, checkpoint(10)]
    service.remove_checkpoint(lease, 5)
    assert service.checkpoints(lease.job_id) == [checkpoint(10)]


def test_tells_in_one_look_which_jobs_have_news(store, lease, spec):
    other = store.tenant("bob").create_job(spec, {}).job_id
    before = store.last_seqs([lease.job_id, other])
    event = store.service().append_event(lease, WarningEvent(name="n", message="m"))
    assert store.last_seqs([lease.job_id, other, "job-none"]) == before | {lease.job_id: event.seq}
