import hashlib
import json
import subprocess
import sys
import threading
import warnings
from functools import partial
from importlib.metadata import version

import gymnasium as gym
import pytest

import tinkergym as tg
from tinkergym.errors import (
    CheckpointCorruptError,
    ClientClosedError,
    InvalidEnvironmentError,
    InvalidRequestError,
    JobCancelledError,
    JobFailedError,
    NotFoundError,
    PolicyVersionGoneError,
    PromptTooLongError,
    ServiceUnreachableError,
    UnknownEnvironmentError,
    UnknownModelError,
)
from tinkergym.schema.events import (
    CheckpointView,
    ErrorView,
    Event,
    JobState,
    StateEvent,
    StepEvent,
    WarningEvent,
)
from tinkergym.schema.job_spec import EnvironmentRef, JobSpec

SMALL = tg.GRPO(group_size=2, groups_per_step=2)


class Echo(tg.TextEnv):
    """Pays for the answer "ok", twice."""

    def start(self, options):
        self.turns = 0
        return f"Say ok {self.np_random.integers(10)}."

    def reply(self, action):
        self.turns += 1
        return "Again.", float(action == "ok"), self.turns == 2


def bodies(job, kind):
    return [event.body for event in job.events() if isinstance(event.body, kind)]


def test_a_class_is_played_in_this_process_until_the_job_is_done(service, client):
    job = client.train(Echo, steps=3, algorithm=SMALL)
    assert [step.reward_mean for step in bodies(job, StepEvent)] == [2.0, 2.0, 2.0]
    assert job.wait().state is JobState.COMPLETED
    assert job.spec.rollout == "client"
    assert job.spec.environment.id == "local/Echo-v0"
    first = service.jobs.get(job.id).history[0][0].trajectory
    assert first.transcript[1] == ("assistant", "ok")
    assert any(first.segments[0].loss_mask)


def test_an_id_that_the_service_knows_is_played_there(start_service):
    start_service(environments=["board/TicTacToeVs-v0"])
    job = tg.Client().train("board/TicTacToeVs-v0", steps=2)
    assert job.spec.rollout == "server"
    assert job.wait().step == 2


def test_an_id_that_only_this_process_knows_is_played_here(client):
    tg.register("here/Echo-v0", Echo)
    job = client.train("here/Echo-v0", steps=1, algorithm=SMALL)
    assert job.spec.rollout == "client"
    assert job.wait().step == 1


def test_a_job_that_is_played_here_says_which_packs_are_installed_here(start_service):
    service = start_service(environments=["bandit/Bandit-v0"])
    client = tg.Client()
    job = client.train(Echo, steps=1, algorithm=SMALL)
    (bandit,) = [pack for pack in job.view().client_packs if pack.name == "bandit"]
    assert (bandit.distribution, bandit.version) == ("tinkergym-bandit", version("tinkergym-bandit"))
    job.wait()
    assert client.train("bandit/Bandit-v0", steps=1, algorithm=SMALL).view().client_packs == []
    assert len(service.jobs.newest_first()) == 2


def test_an_explicit_rollout_wins(start_service):
    service = start_service(environments=["here/Echo-v0"])
    tg.register("here/Echo-v0", Echo)
    client = tg.Client()
    job = client.train("here/Echo-v0", steps=1, algorithm=SMALL, rollout="client")
    assert job.wait().spec.rollout == "client"
    tg.register("only_here/Echo-v0", Echo)
    with pytest.raises(UnknownEnvironmentError):
        client.train("only_here/Echo-v0", steps=1, rollout="server")
    with pytest.raises(InvalidRequestError, match="runs no code of a client"):
        client.train(Echo, steps=1, rollout="server")
    assert len(service.jobs.newest_first()) == 1


def test_settings_are_refused_before_anything_is_sent(service, client):
    for wrong, field in [({"steps": 0}, "steps"), ({"steps": 1, "sede": 3}, "sede")]:
        with pytest.raises(InvalidRequestError) as caught:
            client.train(Echo, **wrong)
        assert caught.value.field == field
    assert "POST /v1/jobs" not in service.calls


@pytest.mark.parametrize("name", ["kwargs", "env_kwarg", "environment_kwargs"])
def test_a_slip_of_the_environments_arguments_is_told_what_they_are_called(client, name):
    for use in (client.train, partial(client.distill, teacher="nano")):
        with pytest.raises(InvalidRequestError, match=r"did you mean env_kwargs\?") as caught:
            use(Echo, steps=1, **{name: {"size": 3}})
        assert caught.value.field == name


def test_an_environment_cannot_be_named_once_more_among_the_settings(service, client):
    for use in (client.train, partial(client.distill, teacher="nano")):
        with pytest.raises(InvalidRequestError, match="environment: it is the first argument already"):
            use(Echo, steps=1, environment={"id": "board/TicTacToeVs-v0"})
    assert "POST /v1/jobs" not in service.calls


@pytest.mark.parametrize(
    ("env_id", "kwargs", "field"),
    [
        ("board/TicTacToeVs-v0", {"opponent": object()}, "environment.kwargs.opponent"),
        ("board/TicTacToeVs-v0", {"size": float("nan")}, "environment.kwargs.size"),
        ("", {}, "environment.id"),
    ],
)
def test_an_environment_that_cannot_travel_with_a_job_is_refused(service, client, env_id, kwargs, field):
    for use in (
        lambda: client.train(env_id, steps=1, env_kwargs=kwargs),
        lambda: client.policy().evaluate(env_id, env_kwargs=kwargs),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            use()
        assert caught.value.field == field
    assert "POST /v1/jobs" not in service.calls


@pytest.mark.parametrize(
    ("source", "message"),
    [(Echo(), "hand over the class"), (3, "cannot train in 3"), (lambda: 3, "not a gymnasium.Env")],
)
def test_what_is_no_environment_is_refused_with_what_to_hand_over(service, client, source, message):
    with pytest.raises(InvalidRequestError, match=message):
        client.train(source, steps=1)
    assert "POST /v1/jobs" not in service.calls


def test_env_kwargs_that_are_no_mapping_are_refused(service, client):
    with pytest.raises(InvalidRequestError, match="env_kwargs: must be a mapping"):
        client.train("board/TicTacToeVs-v0", steps=1, env_kwargs=5)


def test_a_key_is_taken_without_the_lines_end_that_a_file_added(service):
    with tg.Client(service.url, f" {service.api_key}\n") as client:
        assert client.jobs() == []


@pytest.mark.parametrize("key", ["tg-\u00fcber", "tg-a\nb"])
def test_what_cannot_be_a_key_is_refused_as_such(service, key):
    with pytest.raises(InvalidRequestError, match="characters that no key has"):
        tg.Client(service.url, key)


def test_an_environment_that_cannot_be_reset_is_refused_before_a_job_starts(service, client):
    class Broken(Echo):
        def start(self, options):
            raise KeyError("board")

    with pytest.raises(InvalidEnvironmentError, match="KeyError: 'board'"):
        client.train(Broken, steps=1)
    assert "POST /v1/jobs" not in service.calls


def test_a_prompt_longer_than_the_context_is_refused_before_a_job_starts(start_service):
    service = start_service(context_length=64)

    class Wordy(Echo):
        def start(self, options):
            return "word " * 100

    with pytest.raises(PromptTooLongError, match="the model's context 64"):
        tg.Client().train(Wordy, steps=1)
    assert "POST /v1/jobs" not in service.calls


def test_an_answer_that_does_not_fit_behind_the_first_prompt_is_refused_as_the_service_would(start_service):
    service = start_service(context_length=200)
    with pytest.raises(PromptTooLongError, match="do not fit into the 200 tokens") as caught:
        tg.Client().train(Echo, steps=1, sampling=tg.Sampling(max_turn_tokens=190))
    assert caught.value.field == "sampling.max_turn_tokens"
    with pytest.raises(PromptTooLongError, match=r"limits.max_context_tokens=70 \(set it to") as caught:
        tg.Client().train(Echo, steps=1, limits=tg.Limits(max_context_tokens=70))
    assert caught.value.field == "limits.max_context_tokens"
    assert "POST /v1/jobs" not in service.calls


def test_ctrl_c_ends_the_waiting_and_says_how_to_see_the_job_again(client, monkeypatch):
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
    assert f"tinkergym jobs attach {job.id}" in note
    played.set()
    assert job.wait().step == 1


def test_ctrl_c_in_a_loop_over_events_names_the_job_and_hides_the_transport(client, monkeypatch):
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


def test_events_without_a_replay_leave_out_what_has_happened(client):
    job = client.train(Echo, steps=1, algorithm=SMALL)
    job.wait()
    assert len(list(job.events())) > 1
    assert [event.body.state for event in job.events(replay=False)] == ["completed"]


def append_warnings(service, job, *names):
    with service.jobs.changed:
        events = service.jobs.get(job.id).events
        for name in names:
            body = WarningEvent(name=name, message=f"{name} number {len(events)}", step=3, count=2)
            events.append(Event(seq=len(events) + 1, job_id=job.id, time=0, body=body))


def when_followed(service, monkeypatch, then):
    """Call `then` while the service sends a job's events so far."""
    fault = service.fault
    monkeypatch.setattr(service, "fault", lambda call: then() and None if "EVENT" in call else fault(call))


@pytest.mark.parametrize("ended", [True, False])
def test_waiting_passes_each_kind_of_warning_on_once_also_of_before_it_began(
    service, client, monkeypatch, ended
):
    job = client.train(Echo, steps=10_000, algorithm=SMALL)
    append_warnings(service, job, "environment_error", "loss_spike", "environment_error")
    end = partial(service.jobs.end, job.id, JobState.COMPLETED)
    if ended:
        end()
    else:
        when_followed(service, monkeypatch, end)
    with pytest.warns(UserWarning) as heard:
        job.wait()
    # Others may close a socket meanwhile without a word, and Python says so here.
    said = [one for one in heard if one.category is UserWarning]
    assert [str(one.message).split(" number ")[0] for one in said] == [
        f"{job.id} at step 3: environment_error, 2 times: environment_error",
        f"{job.id} at step 3: loss_spike, 2 times: loss_spike",
    ]
    assert {one.filename for one in said} == {__file__}


@pytest.mark.parametrize("seen", [0, 1, 10])
def test_a_loop_over_some_events_hides_no_warning_and_each_is_told_once(service, client, seen):
    job = client.train(Echo, steps=10_000, algorithm=SMALL)
    append_warnings(service, job, "environment_error", "loss_spike")
    service.jobs.end(job.id, JobState.COMPLETED)
    for number, _ in enumerate(job.events(), start=1):
        if number > seen:
            break
    with pytest.warns(UserWarning) as said:
        job.wait()
    assert len(said) == 2
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
def test_waiting_for_a_job_that_waits_for_a_client_says_once_what_to_type(
    service, client, monkeypatch, rollout, to_type
):
    environment = EnvironmentRef(id="local/Echo-v0")
    client.submit(JobSpec(environment=environment, rollout=rollout, steps=1))
    for state in (JobState.WAITING_FOR_CLIENT, JobState.RUNNING, JobState.WAITING_FOR_CLIENT):
        service.jobs.end("job-1", state)
    when_followed(service, monkeypatch, partial(service.jobs.end, "job-1", JobState.COMPLETED))
    with pytest.warns(UserWarning) as said:
        client.job("job-1").wait()
    (told,) = [str(one.message) for one in said]
    assert told.startswith("job-1 waits for a client") and told.endswith(f"play on: {to_type}")


@pytest.mark.parametrize("by", ["another", "this process"])
@pytest.mark.filterwarnings("error::UserWarning")
def test_nobody_is_asked_to_play_what_is_played(service, client, monkeypatch, by):
    job = client.train(Echo, steps=10_000, algorithm=SMALL)
    service.jobs.end(job.id, JobState.WAITING_FOR_CLIENT)
    if by == "another":
        service.jobs.end(job.id, JobState.RUNNING)
    when_followed(service, monkeypatch, partial(service.jobs.end, job.id, JobState.COMPLETED))
    (client.job(job.id) if by == "another" else job).wait()
    job.close()


def test_a_hand_written_gymnasium_environment_can_be_trained_in(client):
    class Plain(gym.Env):
        observation_space = action_space = tg.spaces.Text()

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return "hello", {}

        def step(self, action):
            return "", 1.0, True, False, {}

    job = client.train(lambda: Plain(), steps=1, algorithm=SMALL)
    assert [step.reward_mean for step in bodies(job, StepEvent)] == [1.0]


def test_env_kwargs_reach_the_environment_and_the_record(client):
    class Named(Echo):
        def __init__(self, name):
            super().__init__()
            assert name == "ada"

    job = client.train(Named, steps=1, algorithm=SMALL, env_kwargs={"name": "ada"})
    assert job.wait().spec.environment.kwargs == {"name": "ada"}


def test_one_request_to_train_is_one_job_however_often_it_is_sent(service, client):
    service.break_next("POST /v1/jobs", status=503)
    client.train(Echo, steps=1, algorithm=SMALL).wait()
    assert len(service.jobs.newest_first()) == 1


def test_events_go_on_where_the_stream_broke_and_none_comes_twice(service, client):
    for _ in range(3):
        service.break_next("EVENT job-1")
    job = client.train(Echo, steps=4, algorithm=SMALL)
    events = list(job.events())
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert isinstance(events[-1].body, StateEvent)
    assert [event.seq for event in job.events(after=3)] == [e.seq for e in events if e.seq > 3]


@pytest.mark.parametrize(("outages", "news"), [(1, 0), (2, 1), (4, 1)])
def test_a_service_that_is_not_back_at_once_is_missed_aloud_and_once(service, client, caplog, outages, news):
    job = client.train(Echo, steps=1, algorithm=SMALL)
    job.wait()
    caplog.clear()
    for _ in range(outages):
        service.break_next(f"GET /v1/jobs/{job.id}/events")
    assert list(job.events())
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == news
    for text in said:
        assert f"no service answers at {service.url}" in text
        assert "for up to 5 min. Ctrl-C ends the looking, not the job" in text


def test_a_job_shows_what_its_events_told(service, client):
    job = client.train(Echo, steps=4, algorithm=SMALL)
    for event in job.events():
        if isinstance(event.body, StepEvent):
            assert repr(job) == f"<Job {job.id} running at step {event.body.step}/4>"
    assert repr(job) == f"<Job {job.id} completed at step 4/4>"
    # Reading the log again makes it no younger.
    next(job.events())
    assert repr(job) == f"<Job {job.id} completed at step 4/4>"


def test_a_job_that_failed_says_why_and_what_to_do(service, client):
    job = client.train(Echo, steps=5, algorithm=SMALL)
    service.jobs.end(
        job.id,
        JobState.FAILED,
        error=ErrorView(type="InvalidEnvironmentError", message="reset raised", hint="mend reset"),
    )
    with pytest.raises(JobFailedError, match=r"reset raised \(mend reset\)") as caught:
        job.wait()
    assert isinstance(caught.value.__cause__, InvalidEnvironmentError)


def test_a_cancelled_job_ends_and_says_so(start_service):
    start_service(lambda prompt: "no")
    with tg.Client() as client:
        job = client.train(Echo, steps=10_000, algorithm=SMALL)
        job.cancel()
        with pytest.raises(JobCancelledError, match="checkpoints are kept"):
            job.wait()


def test_a_job_can_be_taken_up_again_with_its_environment(service, client):
    left = client.train(Echo, steps=10_000, algorithm=SMALL)
    next(event for event in left.events() if isinstance(event.body, StepEvent))
    left.close()
    service.jobs.take_back(left.id)
    done = service.jobs.get(left.id).view.step
    with pytest.raises(UnknownEnvironmentError, match="env="):
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
def test_a_job_is_not_taken_up_in_another_environment(service, client, other):
    left = client.train(Echo, steps=10_000, algorithm=SMALL)
    left.close()
    with pytest.raises(InvalidRequestError, match="the job plays local/Echo-v0, not ") as caught:
        client.attach(left.id, env=other)
    assert caught.value.field == "env"
    left.cancel()
    with pytest.raises(InvalidRequestError, match="the job plays local/Echo-v0, not "):
        client.attach(left.id, env=other)
    assert client.attach(left.id, env=Echo).state.final


def test_a_job_of_an_id_is_taken_up_with_that_id_only(service, client):
    left = client.train("board/TicTacToeVs-v0", rollout="client", steps=10_000, algorithm=SMALL)
    left.close()
    with pytest.raises(InvalidRequestError, match=r"plays board/TicTacToeVs-v0, not local/Echo-v0 \(leave"):
        client.attach(left.id, env=Echo)
    left.cancel()


def test_an_environment_for_a_job_that_the_service_plays_is_refused(start_service):
    start_service(environments=["board/TicTacToeVs-v0"])
    with tg.Client() as client:
        job = client.train("board/TicTacToeVs-v0", steps=2)
        with pytest.raises(InvalidRequestError, match="not played by a client"):
            client.attach(job.id, env=Echo)


def test_an_environment_that_breaks_in_play_ends_its_episodes_by_name_and_the_job_goes_on(service, client):
    class Fragile(Echo):
        def reply(self, action):
            raise RuntimeError("the dice fell off the table")

    job = client.train(Fragile, steps=1, algorithm=SMALL)
    job.wait()
    trajectory = service.jobs.get(job.id).history[0][0].trajectory
    assert trajectory.stop_reason == "environment_error"
    assert "the dice fell off the table" in trajectory.error


def test_what_was_made_from_a_client_ends_with_it_and_says_so_at_once(service):
    with tg.Client() as client:
        job = client.train(Echo, steps=10_000, algorithm=SMALL)
        policy = job.policy()
        policy.act("Say ok 1.")
    with pytest.raises(ClientClosedError, match="make a new Client"):
        policy.act("Again.")
    with pytest.raises(ClientClosedError):
        job.view()
    job.close()


def test_jobs_are_listed_newest_first(client):
    for _ in range(3):
        client.train(Echo, steps=1, algorithm=SMALL).wait()
    views = client.jobs(limit=2)
    assert [view.job_id for view in views] == ["job-3", "job-2"]
    assert repr(views) == "[<JobView job-3 completed at step 1/1>, <JobView job-2 completed at step 1/1>]"
    assert [view.job_id for view in client.jobs(before="job-2")] == ["job-1"]


class TestDownload:
    WEIGHTS = b"weights" * 1000

    @pytest.fixture
    def job(self, service, client):
        job = client.train(Echo, steps=1, algorithm=SMALL)
        job.wait()
        digest = hashlib.sha256(self.WEIGHTS).hexdigest()
        manifest = {"files": {"adapter.safetensors": {"bytes": len(self.WEIGHTS), "sha256": digest}}}
        service.files = {"adapter.safetensors": self.WEIGHTS, "manifest.json": json.dumps(manifest).encode()}
        service.jobs.get(job.id).checkpoints.append(
            CheckpointView(
                step=1,
                policy_version=1,
                path="/there/step-000001",
                sha256=digest,
                files={name: len(content) for name, content in service.files.items()},
            )
        )
        return job

    def test_the_files_arrive_whole(self, job, tmp_path):
        folder = job.download(path=tmp_path)
        assert (folder / "adapter.safetensors").read_bytes() == self.WEIGHTS
        assert folder == tmp_path / job.id / "step-000001"

    def test_a_damaged_file_is_refused_and_not_kept(self, service, job, tmp_path):
        service.files["adapter.safetensors"] = self.WEIGHTS[:-1] + b"?"
        with pytest.raises(CheckpointCorruptError, match=r"adapter.safetensors .* arrived damaged"):
            job.download(1, tmp_path)
        assert not list(tmp_path.rglob("*adapter*"))

    @pytest.mark.parametrize("way", ["download", "export"])
    def test_a_place_that_cannot_be_written_is_named(self, job, tmp_path, way):
        (tmp_path / "file").write_text("")
        with pytest.raises(InvalidRequestError, match=r"file.* cannot be written: .*name a folder"):
            getattr(job, way)(path=tmp_path / "file" / "inside")

    def test_a_file_that_cannot_take_its_place_is_named(self, job, tmp_path):
        (tmp_path / job.id / "step-000001" / "manifest.json" / "full").mkdir(parents=True)
        with pytest.raises(InvalidRequestError, match=r"manifest.json cannot be written"):
            job.download(path=tmp_path)

    def test_a_checkpoint_that_is_not_there_names_those_that_are(self, job, tmp_path):
        with pytest.raises(NotFoundError, match=r"no checkpoint of step 7 .*there: 1"):
            job.download(7, tmp_path)


def test_without_a_service_the_client_says_how_to_start_one(monkeypatch, tmp_path):
    for name in ("TINKERGYM_URL", "TINKERGYM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TINKERGYM_HOME", str(tmp_path))
    with pytest.raises(ServiceUnreachableError, match="tinkergym serve"):
        tg.Client()


@pytest.mark.parametrize("ending", ["/", "/v1", "/v1/", "/ \n"])
def test_the_services_url_may_be_written_as_other_clients_want_it(service, ending):
    with tg.Client(service.url + ending, service.api_key) as client:
        assert client.url == service.url
        assert client.models()[0].name == "nano"


def test_a_local_service_is_found_by_the_file_it_writes(service, monkeypatch, tmp_path):
    for name in ("TINKERGYM_URL", "TINKERGYM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TINKERGYM_HOME", str(tmp_path))
    (tmp_path / "local.json").write_text(json.dumps({"url": service.url, "api_key": service.api_key}))
    assert tg.Client().models()[0].name == "nano"


def test_the_local_services_key_is_not_sent_to_another_service(service, monkeypatch, tmp_path):
    monkeypatch.delenv("TINKERGYM_API_KEY")
    monkeypatch.setenv("TINKERGYM_HOME", str(tmp_path))
    (tmp_path / "local.json").write_text(
        json.dumps({"url": "http://127.0.0.1:8265", "api_key": service.api_key})
    )
    with pytest.raises(tg.TinkerGymError, match="key"):
        tg.Client(service.url).models()


def test_importing_tinkergym_loads_neither_httpx_nor_torch():
    code = "import sys, tinkergym; print({'httpx', 'torch', 'rich', 'typer'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


@pytest.mark.parametrize("adapter", [False, 0, {}, ""])
def test_an_adapter_that_is_none_is_refused_and_none_is_the_usual_one(client, adapter):
    with pytest.raises(InvalidRequestError) as caught:
        client.train(Echo, steps=1, adapter=adapter)
    assert caught.value.field.startswith("adapter")
    assert client.train(Echo, steps=1, algorithm=SMALL, adapter=None).wait().spec.adapter == tg.LoRA()


@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        ("train", {"stepz": 1}, "did you mean steps"),
        ("distill", {"teacher": "nano", "stepz": 1}, "did you mean steps"),
        ("distill", {"teachr": "nano", "steps": 1}, "did you mean teacher"),
    ],
)
def test_a_slip_of_what_has_to_be_given_is_told_as_one(client, method, given, said):
    with pytest.raises(InvalidRequestError, match="unknown setting") as caught:
        getattr(client, method)(Echo, **given)
    assert said in caught.value.hint


def test_only_versions_that_are_kept_can_be_played(service, client):
    job = client.train(Echo, steps=3, algorithm=SMALL)
    job.wait()
    kept = CheckpointView(step=1, policy_version=1, path="/x", sha256="00", files={})
    service.jobs.get(job.id).checkpoints.append(kept)
    assert [job.policy(version=version).version for version in (None, 0, 1, 3)] == [None, 0, 1, 3]
    with pytest.raises(PolicyVersionGoneError) as gone:
        job.policy(version=2)
    assert (gone.value.field, "checkpoint: 1;" in gone.value.hint) == ("version", True)
    named = [client.policy(f"{job.id}{at}") for at in ("", "@latest", "@1")]
    assert [(policy.name, policy.version) for policy in named] == [(job.id, v) for v in (None, None, 1)]
    with pytest.raises(PolicyVersionGoneError):
        client.policy(f"{job.id}@2")


def test_a_policy_of_a_job_plays_as_in_training_unless_it_is_told_otherwise(client):
    job = client.train(Echo, steps=3, algorithm=SMALL, sampling={"temperature": 0.7, "max_turn_tokens": 9})
    policy = client.policy(job.id)
    assert (policy.temperature, policy.max_turn_tokens) == (0.7, 9)
    policy = client.policy(f"{job.id}@0", temperature=0.2, system_prompt="Be brief.")
    assert (policy.temperature, policy.system_prompt, policy.version) == (0.2, "Be brief.", 0)


def test_numbers_of_versions_are_numbers(client):
    with client.train(Echo, steps=3, algorithm=SMALL) as job:
        for wrong in ("newest", -1, True):
            with pytest.raises(InvalidRequestError, match="leave it out for the newest") as caught:
                job.policy(version=wrong)
            assert caught.value.field == "version"


def test_a_model_that_is_a_folder_here_is_to_be_named_by_its_absolute_path(client, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)

    def refuse(*args, **kwargs):
        raise UnknownModelError("unknown model 'mine'", hint="offered are: nano", field="model")

    monkeypatch.setattr(type(client._api.connection), "call", refuse)
    with pytest.raises(UnknownModelError) as caught:
        client.train(Echo, model="mine", steps=1)
    assert f"give its absolute path {str(tmp_path / 'mine')!r}" in caught.value.hint
    assert "offered are: nano" in caught.value.hint


def test_a_folder_that_the_service_has_seen_is_not_to_be_named_in_another_way(client, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)

    def refuse(*args, **kwargs):
        raise UnknownModelError(f"{str(tmp_path / 'mine')!r} has no config.json", field="model")

    monkeypatch.setattr(type(client._api.connection), "call", refuse)
    with pytest.raises(UnknownModelError) as caught:
        client.train(Echo, model="mine", steps=1)
    assert caught.value.hint == ""


class Unjudged(tg.SingleTurnEnv):
    def ask(self, options):
        return "?"


class Deaf(tg.TextEnv):
    def start(self, options):
        return "?"


@pytest.mark.parametrize(("env", "missing"), [(Unjudged, r"score\(answer\)"), (Deaf, r"reply\(action\)")])
def test_a_class_that_cannot_judge_an_answer_is_refused_before_the_job_starts(client, service, env, missing):
    with pytest.raises(InvalidEnvironmentError, match=f"needs a method {missing}"):
        client.train(env, steps=1)
    assert service.jobs.newest_first() == []


class Late(Echo):
    def __init__(self, path, size=3):
        super().__init__()


def test_an_argument_that_the_environment_lacks_is_told_with_how_it_is_given(client):
    with pytest.raises(InvalidEnvironmentError) as caught:
        client.train(Late, steps=1, env_kwargs={"size": 4})
    assert caught.value.hint == "it needs path, as in env_kwargs={'path': ...}"


class Sized(Echo):
    def __init__(self, size=3, opponent="random"):
        super().__init__()


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [({"sise": 4}, "sise: did you mean size?"), ({"zzz": 4}, "it takes size, opponent")],
)
def test_an_argument_that_the_environment_does_not_have_is_told_with_the_one_that_was_meant(
    client, kwargs, said
):
    with pytest.raises(InvalidEnvironmentError) as caught:
        client.train(Sized, steps=1, env_kwargs=kwargs)
    assert said in caught.value.hint
