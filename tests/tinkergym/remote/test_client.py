import subprocess
import sys
from functools import partial
from importlib.metadata import version

import gymnasium as gym
import pytest

import tinkergym as tg
from tinkergym.errors import (
    ConflictError,
    InvalidRequestError,
    PolicyVersionGoneError,
    ServiceUnreachableError,
    UnknownEnvironmentError,
    UnknownModelError,
)
from tinkergym.schema.events import (
    JobState,
    StepEvent,
)

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


def test_plays_class_in_this_process_until_the_job_is_done(service, client):
    job = client.train(Echo, steps=3, algorithm=SMALL)
    assert [step.reward_mean for step in bodies(job, StepEvent)] == [2.0, 2.0, 2.0]
    assert job.wait().state is JobState.COMPLETED
    assert job.spec.rollout == "client"
    assert job.spec.environment.id == "local/Echo-v0"
    first = service.jobs.get(job.id).history[0][0].trajectory
    assert first.transcript[1] == ("assistant", "ok")
    assert any(first.segments[0].loss_mask)


def test_plays_id_there_that_the_service_knows(start_service, connect):
    start_service(environments=["board/TicTacToeVs-v0"])
    job = connect().train("board/TicTacToeVs-v0", steps=2)
    assert job.spec.rollout == "server"
    assert job.wait().step == 2


def test_plays_id_here_that_only_this_process_knows(client):
    tg.register("here/Echo-v0", Echo)
    job = client.train("here/Echo-v0", steps=1, algorithm=SMALL)
    assert job.spec.rollout == "client"
    assert job.wait().step == 1


def test_reports_packs_installed_here_with_job_played_here(start_service, connect):
    service = start_service(environments=["bandit/Bandit-v0"])
    client = connect()
    job = client.train(Echo, steps=1, algorithm=SMALL)
    (bandit,) = [pack for pack in job.view().client_packs if pack.name == "bandit"]
    assert (bandit.distribution, bandit.version) == ("tinkergym-bandit", version("tinkergym-bandit"))
    job.wait()
    assert client.train("bandit/Bandit-v0", steps=1, algorithm=SMALL).view().client_packs == []
    assert len(service.jobs.newest_first()) == 2


def test_prefers_an_explicit_rollout(start_service, connect):
    service = start_service(environments=["here/Echo-v0"])
    tg.register("here/Echo-v0", Echo)
    client = connect()
    job = client.train("here/Echo-v0", steps=1, algorithm=SMALL, rollout="client")
    assert job.wait().spec.rollout == "client"
    tg.register("only_here/Echo-v0", Echo)
    with pytest.raises(UnknownEnvironmentError):
        client.train("only_here/Echo-v0", steps=1, rollout="server")
    with pytest.raises(InvalidRequestError) as caught:
        client.train(Echo, steps=1, rollout="server")
    assert caught.value.field == "rollout"
    assert len(service.jobs.newest_first()) == 1


def test_rejects_settings_before_anything_is_sent(service, client):
    for wrong, field in [({"steps": 0}, "steps"), ({"steps": 1, "sede": 3}, "sede")]:
        with pytest.raises(InvalidRequestError) as caught:
            client.train(Echo, **wrong)
        assert caught.value.field == field
    assert "POST /v1/jobs" not in service.calls


@pytest.mark.parametrize("name", ["kwargs", "env_kwarg", "environment_kwargs"])
def test_suggests_right_name_for_misspelt_environment_argument(client, name):
    for use in (client.train, partial(client.distill, teacher="nano")):
        with pytest.raises(InvalidRequestError) as caught:
            use(Echo, steps=1, **{name: {"size": 3}})
        assert caught.value.field == name


def test_rejects_second_environment_among_the_settings(service, client):
    for use in (client.train, partial(client.distill, teacher="nano")):
        with pytest.raises(InvalidRequestError) as caught:
            use(Echo, steps=1, environment={"id": "board/TicTacToeVs-v0"})
        assert caught.value.field == "environment"
    assert "POST /v1/jobs" not in service.calls


@pytest.mark.parametrize(
    ("env_id", "kwargs", "field"),
    [
        ("board/TicTacToeVs-v0", {"opponent": object()}, "environment.kwargs.opponent"),
        ("board/TicTacToeVs-v0", {"size": float("nan")}, "environment.kwargs.size"),
        ("", {}, "environment.id"),
    ],
)
def test_rejects_environment_that_cannot_travel_with_a_job(service, client, env_id, kwargs, field):
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
    [(Echo(), "pass the class"), (3, "cannot train in 3"), (lambda: 3, "not a gymnasium.Env")],
)
def test_rejects_non_environment_with_what_to_hand_over(service, client, source, message):
    with pytest.raises(InvalidRequestError, match=message) as caught:
        client.train(source, steps=1)
    assert caught.value.field == "environment"
    assert "POST /v1/jobs" not in service.calls


def test_rejects_env_kwargs_that_are_no_mapping(service, client):
    with pytest.raises(InvalidRequestError) as caught:
        client.train("board/TicTacToeVs-v0", steps=1, env_kwargs=5)
    assert caught.value.field == "env_kwargs"


def test_takes_key_without_line_end_that_a_file_added(service):
    with tg.Client(service.url, f" {service.api_key}\n") as client:
        assert client.jobs() == []


@pytest.mark.parametrize("key", ["tg-\u00fcber", "tg-a\nb"])
def test_rejects_what_cannot_be_a_key_as_such(service, key, connect):
    with pytest.raises(InvalidRequestError) as caught:
        connect(service.url, key)
    assert caught.value.field == "api_key"


def test_trains_in_a_hand_written_gymnasium_environment(client):
    class Plain(gym.Env):
        observation_space = action_space = tg.spaces.Text()

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return "hello", {}

        def step(self, action):
            return "", 1.0, True, False, {}

    job = client.train(lambda: Plain(), steps=1, algorithm=SMALL)
    assert [step.reward_mean for step in bodies(job, StepEvent)] == [1.0]


def test_passes_env_kwargs_to_the_environment_and_record(client):
    class Named(Echo):
        def __init__(self, name):
            super().__init__()
            assert name == "ada"

    job = client.train(Named, steps=1, algorithm=SMALL, env_kwargs={"name": "ada"})
    assert job.wait().spec.environment.kwargs == {"name": "ada"}


def test_trains_one_job_however_often_the_request_is_sent(service, client):
    service.break_next("POST /v1/jobs", status=503)
    client.train(Echo, steps=1, algorithm=SMALL).wait()
    assert len(service.jobs.newest_first()) == 1


def test_ends_what_client_made_with_it_and_says_so(service):
    with tg.Client() as client:
        job = client.train(Echo, steps=10_000, algorithm=SMALL)
        policy = job.policy()
        policy.act("Say ok 1.")
    with pytest.raises(ConflictError):
        policy.act("Again.")
    with pytest.raises(ConflictError):
        job.view()
    job.close()


def test_says_how_to_start_a_service_without_one(monkeypatch, tmp_path, connect):
    for name in ("TINKERGYM_URL", "TINKERGYM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TINKERGYM_HOME", str(tmp_path))
    with pytest.raises(ServiceUnreachableError):
        connect()


def test_imports_tinkergym_without_loading_httpx_or_torch():
    code = "import sys, tinkergym; print({'httpx', 'torch', 'rich', 'typer'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


@pytest.mark.parametrize("adapter", [False, 0, {}, ""])
def test_rejects_invalid_adapter_and_takes_none_as_the_usual(client, adapter):
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
def test_reports_misspelt_required_argument_as_a_misspelling(client, method, given, said):
    with pytest.raises(InvalidRequestError) as caught:
        getattr(client, method)(Echo, **given)
    assert said in caught.value.hint


def test_plays_only_versions_that_are_kept(client):
    job = client.train(Echo, steps=3, algorithm=SMALL, checkpoint_every=2, name="mine")
    job.wait()
    assert client.policy("mine").name == job.id
    assert [job.policy(version=version).version for version in (None, 0, 2, 3)] == [None, 0, 2, 3]
    with pytest.raises(PolicyVersionGoneError) as gone:
        job.policy(version=1)
    assert gone.value.field == "version"
    named = [client.policy(f"{job.id}{at}") for at in ("", "@latest", "@2")]
    assert [(policy.name, policy.version) for policy in named] == [(job.id, v) for v in (None, None, 2)]
    with pytest.raises(PolicyVersionGoneError):
        client.policy(f"{job.id}@1")


def test_plays_policy_as_in_training_unless_told_otherwise(client):
    job = client.train(Echo, steps=3, algorithm=SMALL, sampling={"temperature": 0.7, "max_turn_tokens": 9})
    policy = client.policy(job.id)
    assert (policy.decoding.temperature, policy.decoding.max_turn_tokens) == (0.7, 9)
    policy = client.policy(f"{job.id}@0", temperature=0.2, system_prompt="Be brief.")
    assert (policy.decoding.temperature, policy.system_prompt, policy.version) == (0.2, "Be brief.", 0)


def test_takes_numbers_of_versions_as_numbers(client):
    with client.train(Echo, steps=3, algorithm=SMALL) as job:
        for wrong in ("newest", -1, True):
            with pytest.raises(InvalidRequestError) as caught:
                job.policy(version=wrong)
            assert caught.value.field == "version"


def test_asks_for_absolute_path_of_local_model_folder(client, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)

    def refuse(*args, **kwargs):
        raise UnknownModelError("unknown model 'mine'", hint="available: nano", field="model")

    monkeypatch.setattr(type(client._api.connection), "call", refuse)
    with pytest.raises(UnknownModelError) as caught:
        client.train(Echo, model="mine", steps=1)
    assert f"give its absolute path {str(tmp_path / 'mine')!r}" in caught.value.hint


def test_does_not_ask_to_rename_folder_the_service_has_seen(client, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)

    def refuse(*args, **kwargs):
        raise UnknownModelError(f"{str(tmp_path / 'mine')!r} has no config.json", field="model")

    monkeypatch.setattr(type(client._api.connection), "call", refuse)
    with pytest.raises(UnknownModelError):
        client.train(Echo, model="mine", steps=1)
