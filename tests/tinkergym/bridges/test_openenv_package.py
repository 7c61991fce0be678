"""Against servers of the real OpenEnv, started by the Python that TINKERGYM_OPENENV_PYTHON names."""

import os
import subprocess
import threading
from pathlib import Path

import pytest

from benchmarks.common import free_port
from tinkergym.bridges.openenv import OpenEnvEnv
from tinkergym.bridges.openenv_wire import OpenEnvAddress, read_schema
from tinkergym.errors import EnvironmentBusyError, RemoteEnvironmentError, ServiceUnreachableError

PYTHON = os.environ.get("TINKERGYM_OPENENV_PYTHON")
pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="needs the package openenv: make test-extras"),
    pytest.mark.service,
]

GAME = '''
"""A game on OpenEnv's own server: repeat the number, twice."""
import random
import sys

import uvicorn
from openenv.core.env_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Say(Action):
    message: str
    volume: int = 1


class Seen(Observation):
    text: str
    left: int | None = None


class Repeat(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **more):
        self.rng, self.left = random.Random(seed), 2
        return self.shown(None)

    def shown(self, reward):
        self.number = self.rng.randrange(10)
        text, left = f"OpenEnv says {self.number}", self.left or None
        return Seen(text=text, left=left, reward=reward, done=not self.left)

    def step(self, action, timeout_s=None, **more):
        if action.message == "break":
            raise RuntimeError("broken on purpose")
        self.left -= 1
        return self.shown(float(action.message == str(self.number)))

    @property
    def state(self):
        return State()


app = create_app(Repeat, Say, Seen, env_name="repeat", max_concurrent_envs=int(sys.argv[2]))
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
'''


def serving(command, cwd, port):
    """Start a server and wait until it answers."""
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    url = f"http://127.0.0.1:{port}"
    pause = threading.Event()
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(process.stdout.read())
        try:
            read_schema(OpenEnvAddress.parse(url), timeout_seconds=5)
        except ServiceUnreachableError:
            pause.wait(0.1)
        else:
            break
    return process, url


@pytest.fixture
def game(tmp_path):
    (tmp_path / "game.py").write_text(GAME)
    started = []

    def start(places=8):
        port = free_port()
        process, url = serving([PYTHON, "game.py", str(port), str(places)], tmp_path, port)
        started.append(process)
        return url

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_plays_rejects_and_loses_on_real_server_as_on_counterpart(game):
    env = OpenEnvEnv(game(), action_field="message", observation_fields=["text"])
    first, _ = env.reset(seed=3)
    assert env.reset(seed=3)[0] == first
    observation, reward, terminated, truncated, info = env.step(first[-1])
    assert (reward, terminated, truncated, info["metrics"]) == (1.0, False, False, {"malformed_actions": 0.0})
    assert env.step(observation[-1])[1:3] == (1.0, True)
    env.reset(seed=0)
    with pytest.raises(RemoteEnvironmentError):
        env.step("break")
    env.close()


def test_rejects_by_real_schema_what_it_does_not_allow(game):
    env = OpenEnvEnv(game())
    assert "volume" in env.metadata["system_prompt"]
    env.reset(seed=3)
    said, reward, over, _, info = env.step('{"message": "1", "volume": "loud"}')
    assert "volume" in said
    assert (reward, over, info["metrics"]["malformed_actions"]) == (0.0, False, 1.0)
    assert "no field 'tone'" in env.step('{"message": "1", "tone": 2}')[0]
    assert not env.step('{"message": "1", "volume": 2}')[4]["metrics"]["malformed_actions"]
    env.close()


def test_shares_places_of_the_real_server(game):
    url = game(places=1)
    first, second = OpenEnvEnv(url), OpenEnvEnv(url, busy_seconds=0)
    first.reset(seed=0)
    with pytest.raises(EnvironmentBusyError):
        second.reset(seed=0)
    first.end_episode()
    patient = OpenEnvEnv(url)
    patient.reset(seed=0)
    patient.close()


def test_trains_in_the_environment_that_openenv_itself_writes(tmp_path):
    """`openenv init`: an echo that pays for long messages."""
    import tinkergym as tg
    from benchmarks.common import service

    cli = Path(PYTHON).with_name("openenv")
    subprocess.run([str(cli), "init", "echo"], cwd=tmp_path, check=True, capture_output=True)
    port = free_port()
    command = [PYTHON, "-m", "uvicorn", "echo.server.app:app", "--port", str(port)]
    process, url = serving(command, tmp_path, port)
    try:
        tg.register("tests/OpenEnvEcho-v0", OpenEnvEnv, kwargs={"url": url})
        env = tg.make("tests/OpenEnvEcho-v0")
        env.reset(seed=0)
        short, long = (env.step(text)[1] for text in ("a", "a" * 20))
        assert long > short > 0
        env.close()
        with service() as running, tg.Client(running.url, api_key=running.api_key) as client:
            job = client.train(
                "tests/OpenEnvEcho-v0",
                steps=2,
                algorithm=tg.GRPO(group_size=2, groups_per_step=2),
                sampling=tg.Sampling(max_turn_tokens=8),
                limits=tg.Limits(max_turns=1),
            )
            assert job.wait().state == "completed"
    finally:
        process.kill()
        process.wait()
