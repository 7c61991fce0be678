"""A job of the real service, whose environment is behind an environment server."""

import os
import subprocess
import sys
import time

import pytest

import tinkergym as tg
from tinkergym.errors import AuthenticationError, TinkerGymError
from tinkergym.schema.events import StepEvent
from tinkergym.testing.environment_server import TOKEN, environment_server

pytestmark = pytest.mark.service

BOARD = "board/TicTacToeVs-v0"


@pytest.fixture
def environment_url():
    with environment_server(BOARD, capacity=4) as url:
        yield url


@pytest.fixture
def client(environment_url, tmp_path, monkeypatch, wait_until_up):
    monkeypatch.setenv("TINKERGYM_HOME", str(tmp_path))
    for name in ("TINKERGYM_URL", "TINKERGYM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    command = [sys.executable, "-m", "tinkergym.cli.main", "serve", "--port", "0"]
    listed = f'environment_urls=["{environment_url}"]'
    with (tmp_path / "serve.log").open("wb") as log:
        process = subprocess.Popen([*command, "--set", listed], stdout=log, stderr=log, env=dict(os.environ))
    try:
        wait_until_up(process)
        with tg.Client() as client:
            yield client
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def wait_until_up(tmp_path):
    def wait(process):
        ends_at = time.monotonic() + 60
        while True:
            try:
                with tg.Client() as client:
                    client.health()
            except TinkerGymError:
                assert process.poll() is None, (tmp_path / "serve.log").read_text()
                assert time.monotonic() < ends_at
                time.sleep(0.1)
            else:
                return

    return wait


def test_training_behind_a_server_gives_the_same_weights_to_the_bit(client, environment_url):
    small = tg.GRPO(group_size=2, groups_per_step=2)
    hashes = []
    for env, kwargs in ((BOARD, None), (environment_url, {"token": TOKEN})):
        job = client.train(env, env_kwargs=kwargs, steps=1, algorithm=small, seed=5, deterministic=True)
        steps = [event.body for event in job.events() if isinstance(event.body, StepEvent)]
        assert [(step.episodes, step.failed_episodes) for step in steps] == [(4, 0)]
        hashes.append(job.checkpoints()[-1].sha256)
        assert TOKEN not in job.view().model_dump_json()
    assert hashes[0] == hashes[1]
    with pytest.raises(AuthenticationError):
        client.train(environment_url, env_kwargs={"token": "another-token"}, steps=1)
