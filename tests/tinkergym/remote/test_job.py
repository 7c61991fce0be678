import threading
import warnings
from functools import partial

import pytest

import tinkergym as tg
from tinkergym.errors import (
    InvalidEnvironmentError,
    InvalidRequestError,
    JobCancelledError,
    JobFailedError,
    UnknownEnvironmentError,
)
from tinkergym.schema.events import (
    ErrorView,
    JobState,
    StateEvent,
    StepEvent,
    WarningEvent,
)
from tinkergym.schema.jobs.parts import EnvironmentRef
from tinkergym.schema.jobs.rl import RLSpec

SMALL = tg.GRPO(group_size=2, groups_per_step=2)


class Echo(tg.TextEnv):
    """Pays for the answer "ok", twice."""

    def start(self, options):
        self.turns = 0
        return f"Say ok {self.np_random.integers(10)}."

    def reply(self, action):
        self.turns += 1
        return "Again.", float(action == "ok"), self.turns == 2


def test_ends_waiting_on_ctrl_c_and_says_how_to_return(client, monkeypatch):
    played = threading.Event()

    class Slow(Echo):
        def reply(self, action):
            played.wait(60)
            return super().reply(action)

    def interrupted():
        raise KeyboardInterrupt

    job = client.train(Slow, steps=1, algorithm=SMALL)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt) as caught:
        patched.setattr(job, "events", interrupted)
        job.wait()
    (note,) = caught.value.__notes__
    assert f"tinkergym jobs attach {job.id} --env MODULE:Slow" in note
    played.set()
    assert job.wait().step == 1


def test_names_job_and_hides_transport_on_ctrl_c_in_loop(client, monkeypatch):
    def interrupted(*_, **__):
        yield from ()
        raise KeyboardInterrupt("deep in the transport")

    job = client.train(Echo, steps=1, algorithm=SMALL)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt) as caught:
        patched.setattr("tinkergym.remote.job.follow", interrupted)
        list(job.events())
    assert caught.value.__suppress_context__
    assert any(job.id in note for note in caught.value.__notes__)
    assert job.wait().step == 1


def test_leaves_past_events_out_without_a_replay(client):
    job = client.train(Echo, steps=1, algorithm=SMALL)
    job.wait()
    assert len(list(job.events())) > 1
    assert [event.body.state for event in job.events(replay=False)] == ["completed"]


def append_warnings(service, job, *names):
    for number, name in enumerate(names):
        message = f"{name} number {number}"
        service.jobs.say(job.id, WarningEvent(name=name, message=message, step=3, count=2))


def told_of(job_id, heard):
    """The warnings that are about a job: other objects of this process may warn meanwhile."""
    return [one for one in heard if str(one.message).startswith(f"{job_id} ")]


def when_followed(service, monkeypatch, then):
    """Call `then` while the service sends a job's events so far."""
    monkeypatch.setattr(service, "called", lambda call: "EVENT" in call and then())


@pytest.mark.parametrize("ended", [True, False])
def test_passes_each_kind_of_warning_on_once_including_earlier_ones(service, client, monkeypatch, ended):
    job = client.train(Echo, steps=10_000, algorithm=SMALL)
    append_warnings(service, job, "environment_error", "loss_spike", "environment_error")
    end = partial(service.jobs.end, job.id, JobState.COMPLETED)
    if ended:
        end()
    else:
        when_followed(service, monkeypatch, end)
    with pytest.warns(UserWarning) as heard:
        job.wait()
    said = told_of(job.id, heard)
    assert [str(one.message).split(" number ")[0] for one in said] == [
        f"{job.id} at step 3: environment_error, 2 times: environment_error",
        f"{job.id} at step 3: loss_spike, 2 times: loss_spike",
    ]
    assert {one.filename for one in said} == {__file__}


@pytest.mark.parametrize("seen", [0, 1, 10])
def test_hides_no_warning_in_event_loop_and_tells_it_once(service, client, seen):
    job = client.train(Echo, steps=10_000, algorithm=SMALL)
    append_warnings(service, job, "environment_error", "loss_spike")
    service.jobs.end(job.id, JobState.COMPLETED)
    for number, _ in enumerate(job.events(), start=1):
        if number > seen:
            break
    with pytest.warns(UserWarning) as heard:
        job.wait()
    assert len(told_of(job.id, heard)) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        job.wait()
        client.job(job.id).wait(warn=False)


@pytest.mark.parametrize(
    ("rollout", "to_type"),
    [
        ("client", "tinkergym jobs attach job-1 --env MODULE:Echo"),
        ("script", "its script, with TrainRemotely(env, job_id='job-1')"),
    ],
)
def test_says_once_what_to_type_for_job_awaiting_client(service, client, monkeypatch, rollout, to_type):
    environment = EnvironmentRef(id="local/Echo-v0")
    client.submit(RLSpec(environment=environment, rollout=rollout, steps=1))
    for state in (JobState.WAITING_FOR_CLIENT, JobState.RUNNING, JobState.WAITING_FOR_CLIENT):
        service.jobs.end("job-1", state)
    when_followed(service, monkeypatch, partial(service.jobs.end, "job-1", JobState.COMPLETED))
    with pytest.warns(UserWarning) as heard:
        client.job("job-1").wait()
    (told,) = [str(one.message) for one in told_of("job-1", heard)]
    assert told.startswith("job-1 waits for a client") and told.endswith(f"continue with: {to_type}")


@pytest.mark.parametrize("by", ["another", "this process"])
@pytest.mark.filterwarnings("error::UserWarning")
def test_asks_nobody_to_play_what_is_played(service, client, monkeypatch, by):
    job = client.train(Echo, steps=10_000, algorithm=SMALL)
    service.jobs.end(job.id, JobState.WAITING_FOR_CLIENT)
    if by == "another":
        service.jobs.end(job.id, JobState.RUNNING)
    when_followed(service, monkeypatch, partial(service.jobs.end, job.id, JobState.COMPLETED))
    (client.job(job.id) if by == "another" else job).wait()
    job.close()


def test_continues_events_where_stream_broke_without_duplicates(service, client):
    for _ in range(3):
        service.break_next("EVENT job-1")
    job = client.train(Echo, steps=4, algorithm=SMALL)
    events = list(job.events())
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert isinstance(events[-1].body, StateEvent)
    assert [event.seq for event in job.events(after=3)] == [e.seq for e in events if e.seq > 3]


@pytest.mark.parametrize(("outages", "news"), [(1, 0), (2, 1), (4, 1)])
def test_reports_service_that_stays_away_aloud_and_once(service, client, said_by, outages, news):
    job = client.train(Echo, steps=1, algorithm=SMALL)
    job.wait()
    for _ in range(outages):
        service.break_next(f"GET /v1/jobs/{job.id}/events")
    assert list(job.events())
    said = said_by("tinkergym.remote.event_stream")
    assert len(said) == news
    for text in said:
        assert f"no service responds at {service.url}" in text
        assert "for up to 5 min. Ctrl-C stops this, not the job" in text


def test_shows_in_job_what_its_events_told(service, client):
    job = client.train(Echo, steps=4, algorithm=SMALL)
    for event in job.events():
        if isinstance(event.body, StepEvent):
            assert repr(job) == f"<Job {job.id} running at step {event.body.step}/4>"
    assert repr(job) == f"<Job {job.id} completed at step 4/4>"
    # Reading the log again makes it no younger.
    next(job.events())
    assert repr(job) == f"<Job {job.id} completed at step 4/4>"


def test_says_why_a_job_failed_and_what_to_do(service, client):
    job = client.train(Echo, steps=10_000, algorithm=SMALL)
    service.jobs.end(
        job.id,
        JobState.FAILED,
        error=ErrorView(type="InvalidEnvironmentError", message="reset raised", hint="mend reset"),
    )
    with pytest.raises(JobFailedError) as caught:
        job.wait()
    assert isinstance(caught.value.__cause__, InvalidEnvironmentError)


def test_says_that_a_job_ended_by_cancellation(start_service):
    start_service(lambda prompt: "no")
    with tg.Client() as client:
        job = client.train(Echo, steps=10_000, algorithm=SMALL)
        job.cancel()
        with pytest.raises(JobCancelledError):
            job.wait()


def test_resumes_job_with_its_environment(service, client):
    left = client.train(Echo, steps=10_000, algorithm=SMALL)
    next(event for event in left.events() if isinstance(event.body, StepEvent))
    left.close()
    service.jobs.take_back(left.id)
    done = service.jobs.get(left.id).view.step
    with pytest.raises(UnknownEnvironmentError):
        client.attach(left.id)
    job = client.attach(left.id, env=Echo)
    for event in job.events():
        if isinstance(event.body, StepEvent) and event.body.step > done:
            break
    job.cancel()
    job.close()


class Silent(Echo):
    """Another environment of the same arguments."""


@pytest.mark.parametrize("other", [Silent, "board/TicTacToeVs-v0"])
def test_does_not_resume_job_in_another_environment(service, client, other):
    left = client.train(Echo, steps=10_000, algorithm=SMALL)
    left.close()
    with pytest.raises(InvalidRequestError) as caught:
        client.attach(left.id, env=other)
    assert caught.value.field == "env"
    left.cancel()
    with pytest.raises(InvalidRequestError) as caught:
        client.attach(left.id, env=other)
    assert caught.value.field == "env"
    assert client.attach(left.id, env=Echo).state.final


def test_resumes_a_job_by_the_id_of_that_job_only(service, client):
    left = client.train("board/TicTacToeVs-v0", rollout="client", steps=10_000, algorithm=SMALL)
    left.close()
    with pytest.raises(InvalidRequestError) as caught:
        client.attach(left.id, env=Echo)
    assert caught.value.field == "env"
    left.cancel()


def test_rejects_environment_for_a_job_that_the_service_plays(start_service):
    start_service(environments=["board/TicTacToeVs-v0"])
    with tg.Client() as client:
        job = client.train("board/TicTacToeVs-v0", steps=2)
        with pytest.raises(InvalidRequestError) as caught:
            client.attach(job.id, env=Echo)
        assert caught.value.field == "env"


def test_continues_job_whose_environment_breaks_in_play(service, client):
    class Fragile(Echo):
        def reply(self, action):
            raise RuntimeError("the dice fell off the table")

    job = client.train(Fragile, steps=1, algorithm=SMALL, max_failed_fraction=1)
    with pytest.warns(UserWarning, match="the dice fell off the table"):
        job.wait()
    trajectory = service.jobs.get(job.id).history[0][0].trajectory
    assert trajectory.stop_reason == "environment_error"
    assert "the dice fell off the table" in trajectory.error


def test_lists_jobs_newest_first(client):
    for _ in range(3):
        client.train(Echo, steps=1, algorithm=SMALL).wait()
    views = client.jobs(limit=2)
    assert [view.job_id for view in views] == ["job-3", "job-2"]
    assert (
        repr(views) == "[<JobSummary job-3 completed at step 1/1>, <JobSummary job-2 completed at step 1/1>]"
    )
    assert [view.job_id for view in client.jobs(before="job-2")] == ["job-1"]


def test_shows_lists_and_comparisons_in_notebooks(client):
    for name in ("<i>one", "two"):
        client.train(Echo, steps=2, algorithm=SMALL, name=name).wait()
    listed = client.jobs(sort="name")
    assert [one.name for one in listed] == ["<i>one", "two"]
    table = listed._repr_html_()
    assert "&lt;i&gt;one" in table
    assert "<i>" not in table
    assert "polyline" in client.job("two")._repr_html_()  # whose events nobody has read
    found = client.compare("<i>one", "two")
    assert found.settings == {}
    assert "<pre>" in found._repr_html_()
    with pytest.raises(InvalidRequestError) as refused:
        client.compare("two", "two")
    assert refused.value.field == "jobs"
