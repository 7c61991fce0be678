"""Environments that would break a job at its first step, brought along by a pack that is really installed."""

import os
import sys

import psutil
import pytest

from backend.admission.preflight import Preflight
from backend.admission.protocols import Checked
from backend.config import GatewayLimits
from tinkergym.errors import (
    InvalidEnvironmentError,
    InvalidRequestError,
    PromptTooLongError,
    UnknownEnvironmentError,
    UnknownModelError,
)
from tinkergym.schema.job_spec import EnvironmentRef, JobSpec, Limits, Sampling, Train
from tinkergym.testing import byte_bundle

pytestmark = pytest.mark.service

PACK = """
import os, subprocess, sys, time
import gymnasium as gym
import numpy as np
import tinkergym as tg

class Odd(gym.Env):
    action_space = observation_space = gym.spaces.Text(100)
    metadata = {"system_prompt": "s" * 10}

    def __init__(self, how="well", length=5):
        self.how, self.length = how, length
        if how == "raises_when_made":
            raise RuntimeError("no licence found")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.how == "raises":
            raise ValueError("the reason of the user")
        if self.how == "hangs":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            open(os.environ["ODD_PIDS"], "w").write(f"{os.getpid()} {child.pid}")
            time.sleep(600)
        if self.how == "dies":
            print("last words", flush=True)
            os._exit(7)
        if self.how == "image":
            return {"text": "look", "screen": np.zeros((4, 4, 3), np.uint8)}, {}
        if self.how == "silent":
            return [], {}
        if self.how == "numbers":
            return 3, {}
        if self.how == "no_info":
            return "text"
        if self.how == "prints":
            print("{}")
            os.write(1, b"more noise")
        return "x" * self.length, {}

    def step(self, action):
        return "", 0.0, True, False, {}

"""


@pytest.fixture
def pack(tmp_path, monkeypatch):
    (tmp_path / "odd_pack.py").write_text(PACK)
    info = tmp_path / "tinkergym_odd-0.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tinkergym-odd\nVersion: 0.3\n")
    (info / "entry_points.txt").write_text("[tinkergym.envs]\nodd/Odd-v0 = odd_pack:Odd\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    monkeypatch.syspath_prepend(tmp_path)  # as for a service that runs where the pack is installed
    monkeypatch.setenv("ODD_PIDS", str(tmp_path / "pids"))
    return tmp_path


class Catalog:
    def listed(self):
        return []

    def renderer(self, model, chat_template=""):
        if model != "bytes":
            raise UnknownModelError(f"unknown model {model!r}", field="model")
        return byte_bundle(context_length=200)


@pytest.fixture
def preflight():
    return Preflight(Catalog(), GatewayLimits(job_check_seconds=20))


def spec(name="odd/Odd-v0", *, model="bytes", rollout="server", max_turn_tokens=10, **kwargs):
    return JobSpec(
        environment=EnvironmentRef(id=name, kwargs=kwargs),
        model=model,
        rollout=rollout,
        steps=1,
        sampling=Sampling(max_turn_tokens=max_turn_tokens),
    )


def test_of_a_sound_environment_the_packs_version_and_the_system_prompt_are_known(pack, preflight):
    assert preflight.check(spec()) == Checked(packs={"odd": "0.3"}, environment_prompt="s" * 10)


def test_what_an_environment_prints_disturbs_nobody(pack, preflight):
    assert preflight.check(spec(how="prints")).packs == {"odd": "0.3"}


@pytest.mark.parametrize(
    ("kwargs", "text"),
    [
        ({"how": "raises"}, "the reason of the user"),
        ({"how": "raises_when_made"}, "no licence found"),
        ({"how": "dies"}, "last words"),
        ({"how": "numbers"}, "must be a str.*TrainRemotely"),
        ({"how": "image"}, "an image under 'screen'"),
        ({"how": "silent"}, "empty list of messages"),
        ({"how": "no_info"}, "reset"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_an_environment_that_cannot_start_is_refused_with_its_own_words(pack, preflight, kwargs, text):
    with pytest.raises(InvalidEnvironmentError, match=text) as caught:
        preflight.check(spec(**kwargs))
    assert caught.value.field == "environment"


def test_an_environment_that_hangs_is_stopped_with_all_that_it_started(pack):
    with pytest.raises(InvalidEnvironmentError, match="within 6 s"):
        Preflight(Catalog(), GatewayLimits(job_check_seconds=6)).check(spec(how="hangs"))
    pids = [int(pid) for pid in (pack / "pids").read_text().split()]
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], 5)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []


def test_an_unknown_environment_is_refused_with_what_is_meant_and_what_else_to_do(pack, preflight):
    with pytest.raises(UnknownEnvironmentError) as caught:
        preflight.check(spec("odd/Od-v0"))
    assert caught.value.field == "environment.id"
    assert "odd/Odd-v0" in caught.value.hint
    assert "rollout='client'" in caught.value.hint


def test_an_unknown_environment_is_refused_before_any_process_is_started(pack, preflight, monkeypatch):
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("a process was started"))
    with pytest.raises(UnknownEnvironmentError):
        preflight.check(spec("odd/Od-v0"))


def test_a_check_that_takes_too_long_names_the_setting_that_bounds_it(pack):
    with pytest.raises(InvalidEnvironmentError) as caught:
        Preflight(Catalog(), GatewayLimits(job_check_seconds=0.001)).check(spec(how="hangs"))
    assert "limits.job_check_seconds" in caught.value.hint


def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused(pack, preflight):
    with pytest.raises(PromptTooLongError, match="200 tokens of 'bytes'") as caught:
        preflight.check(spec(length=180))
    assert caught.value.field == "sampling.max_turn_tokens"
    assert preflight.check(spec(length=50)).packs == {"odd": "0.3"}


def test_an_environment_that_lives_in_the_client_is_only_a_name_here(preflight):
    assert preflight.check(spec("never/Heard-v0", rollout="client")).packs == {}
    assert preflight.check(spec("never/Heard-v0", rollout="script")).packs == {}


@pytest.mark.parametrize("rollout", ["client", "server"])
def test_an_answer_longer_than_the_context_is_refused_wherever_the_environment_is(pack, preflight, rollout):
    with pytest.raises(PromptTooLongError):
        preflight.check(spec(rollout=rollout, max_turn_tokens=200))


def test_a_longer_context_than_the_model_has_is_refused_by_name(preflight):
    there = spec(rollout="client")
    assert preflight.check(there.model_copy(update={"limits": Limits(max_context_tokens=200)})).packs == {}
    with pytest.raises(InvalidRequestError, match="a context of 200 tokens, not 201") as caught:
        preflight.check(there.model_copy(update={"limits": Limits(max_context_tokens=201)}))
    assert caught.value.field == "limits.max_context_tokens"


def test_an_unknown_model_is_refused_before_any_environment_is_made(preflight):
    with pytest.raises(UnknownModelError):
        preflight.check(spec(model="gpt-9"))


def test_what_passed_once_is_not_tried_again_for_other_settings(pack, preflight):
    preflight.check(spec())
    (pack / "odd_pack.py").write_text("raise RuntimeError('must not be imported again')")
    assert preflight.check(spec(max_turn_tokens=11)).packs == {"odd": "0.3"}
    with pytest.raises(InvalidEnvironmentError, match="odd"):
        preflight.check(spec(length=6))


def of_game(agents):
    agents = {agent: Train() for agent in agents}
    game = EnvironmentRef(id="board/TicTacToe-v0")
    return JobSpec(
        environment=game, model="bytes", steps=1, agents=agents, sampling=Sampling(max_turn_tokens=10)
    )


@pytest.mark.parametrize(
    ("agents", "field"), [(["x", "o", "black"], "agents.black"), (["x"], "agents"), ([], "environment.id")]
)
def test_seats_that_are_not_the_games_are_refused(preflight, agents, field):
    with pytest.raises(InvalidRequestError) as caught:
        preflight.check(of_game(agents))
    assert caught.value.field == field
    if agents:
        assert "its agents are x, o" in caught.value.message


def test_a_game_whose_every_agent_has_a_seat_is_accepted_and_its_pack_known(preflight):
    assert preflight.check(of_game(["o", "x"])).packs.keys() == {"board"}


def test_each_of_several_environments_is_tried(preflight, pack):
    def mixed(second):
        parts = ({"id": "odd/Odd-v0", "weight": 1}, {"id": "odd/Odd-v0", "kwargs": second, "weight": 1})
        return JobSpec(environments=parts, model="bytes", steps=1, sampling=Sampling(max_turn_tokens=4))

    assert preflight.check(mixed({"length": 6})) == Checked(packs={"odd": "0.3"}, environment_prompt="s" * 10)
    with pytest.raises(InvalidEnvironmentError, match="the reason of the user"):
        preflight.check(mixed({"how": "raises"}))
