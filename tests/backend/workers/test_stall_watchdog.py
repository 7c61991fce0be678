"""Real environment workers, and environments that end or block the process they live in."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from backend.episodes.job_board import MOST_WORKER_DEATHS
from backend.workers.env_worker_files import EnvWorkerFiles
from tests.backend.lab import TOKEN
from tinkergym.rollout.call_register import CallRegister, episodes_in_calls
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits

MODULE = """
import ctypes, os, re, time
import gymnasium as gym
from tinkergym.spaces import Text


class Sound(gym.Env):
    observation_space = action_space = Text(1000)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed = seed
        return "say something", {}

    def step(self, action):
        return "", float(self.np_random.random()), True, False, {}


class Exits(Sound):
    def step(self, action):
        os._exit(7)


class Segfaults(Sound):
    def step(self, action):
        ctypes.string_at(0)


class HoldsTheInterpreter(Sound):
    def step(self, action):
        re.match(r"(a+)+$", "a" * 64 + "b")


for kind in (Sound, Exits, Segfaults, HoldsTheInterpreter):
    gym.register("test/" + kind.__name__ + "-v0", entry_point=__name__ + ":" + kind.__name__)
"""
WORKER = """
import sys
from pathlib import Path

import hostile_environments
from backend.workers.env_worker import run_env_worker

if __name__ == "__main__":
    url, token, worker, run_dir = sys.argv[1:]
    run_env_worker(
        url=url, token=token, worker_id=worker, run_dir=Path(run_dir), max_episodes=64, stall_seconds=1.0
    )
"""


class Workers:
    """Keeps one environment worker alive, as the scheduler does."""

    def __init__(self, lab, folder) -> None:
        (folder / "hostile_environments.py").write_text(MODULE)
        (folder / "worker.py").write_text(WORKER)
        self._lab, self._folder = lab, folder
        self._stop = threading.Event()
        self.deaths = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            name = f"{self._lab.tenant_id}-{number}"
            arguments = [self._lab.connection.url, TOKEN, name, self._lab.config.run_dir]
            self._process = subprocess.Popen(
                [sys.executable, self._folder / "worker.py", *arguments],
                env={**os.environ, "PYTHONPATH": str(self._folder)},
            )
            self._process.wait()
            self.deaths += not self._stop.is_set()
            remains = EnvWorkerFiles(self._lab.config.run_dir, name).collect()
            self._lab.pool.env_worker_ended(name, remains=remains)

    def close(self) -> None:
        self._stop.set()
        with suppress(OSError):
            self._process.kill()
        self._thread.join()


@pytest.fixture
def workers(lab, tmp_path):
    workers = Workers(lab, tmp_path)
    yield workers
    workers.close()


@pytest.mark.service
@pytest.mark.parametrize(
    ("kind", "seconds", "stop_reason"),
    [
        ("Exits", 60.0, "environment_error"),
        ("Segfaults", 60.0, "environment_error"),
        ("HoldsTheInterpreter", 4.0, "environment_timeout"),
    ],
)
@pytest.mark.full("starts worker after worker; `test_environment_process` has what ends one")
def test_loses_only_own_episodes_of_environment_that_kills_its_process(
    lab, workers, kind, seconds, stop_reason
):
    common = {"rollout": "server", "steps": MOST_WORKER_DEATHS + 1}
    neighbour = lab.start(environment=EnvironmentRef(id="test/Sound-v0"), **common)
    guilty = lab.start(
        environment=EnvironmentRef(id=f"test/{kind}-v0"),
        max_failed_fraction=1.0,
        limits=Limits(step_timeout_seconds=seconds),
        rollout="server",
        steps=1,
    )
    lab.until(neighbour, lambda: lab.state(guilty).final and lab.state(neighbour).final)
    assert lab.state(neighbour) is JobState.COMPLETED, lab.service.job(neighbour).reason
    assert all(event.failed_episodes == 0 for event in lab.events(neighbour, "step"))
    assert lab.state(guilty) is JobState.COMPLETED, lab.service.job(guilty).reason
    (step,) = lab.events(guilty, "step")
    assert step.stop_reasons == {stop_reason: 4}
    assert "environment_crashed" in {event.name for event in lab.events(guilty, "warning")}
    assert workers.deaths < MOST_WORKER_DEATHS


def test_knows_episodes_in_a_call_after_their_process_died(tmp_path):
    script = f"""
import os
from pathlib import Path
from tinkergym.rollout.call_register import CallRegister

register = CallRegister(Path({str(tmp_path / "calls")!r}))
with register.during("job-1:1:0"):
    pass
with register.during("job-2:1:3"), register.during("job-3:1:0"):
    os._exit(1)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 1
    assert sorted(episodes_in_calls(tmp_path / "calls")) == ["job-2:1:3", "job-3:1:0"]
    CallRegister(tmp_path / "calls")  # the next process begins with none
    assert episodes_in_calls(tmp_path / "calls") == []
    assert episodes_in_calls(tmp_path / "missing") == []
