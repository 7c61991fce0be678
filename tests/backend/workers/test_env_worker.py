"""A group gives the same episodes wherever it is played: here, in processes, over HTTP, in a Ray actor."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path

import pytest

from backend.config import ServiceConfig
from backend.episodes.env_worker_end import EnvWorkerFiles
from backend.episodes.job_board import MOST_WORKER_DEATHS
from backend.worker_url import any_port, unix_url
from backend.workers.endpoint import PoolEndpoint
from tests.backend.lab import TOKEN
from tinkergym.agent.renderer import Renderer
from tinkergym.registration.environments import make_environment
from tinkergym.remote.rollout_transport import HttpRolloutTransport, Routes
from tinkergym.remote.transport import Connection
from tinkergym.rollout.call_register import CallRegister, episodes_in_calls
from tinkergym.rollout.executors import InlineExecutor, ProcessExecutor, ThreadExecutor
from tinkergym.rollout.play_list import play
from tinkergym.rollout.rollout_worker import RolloutWorker
from tinkergym.schema.episodes import EpisodeRequest, LeaseReply, SeatPlan, SubmitReply
from tinkergym.schema.events import JobState
from tinkergym.schema.jobs.parts import EnvironmentRef, Limits, Sampling
from tinkergym.testing import ScriptedSampler, byte_bundle
from tinkergym.trajectory.trajectory import ONLY_AGENT

BUNDLE = byte_bundle()
RENDERER = Renderer.from_bundle(BUNDLE)
MOVES = ["a1", "b2", "c3", "a2", "b1", "c2", "a3", "b3", "c1"]
# What is answered depends on all that was read, so a difference anywhere shows.
SAMPLER = ScriptedSampler(RENDERER, lambda prompt: MOVES[sum(map(ord, prompt)) % len(MOVES)])

IN_RAY = """
import sys
from pathlib import Path
from backend.scheduler.actor_processes import EnvWorkerProcess
from backend.scheduler.ray_start import start_ray
url, token, config, folder = sys.argv[1:]
start_ray(Path(folder))
import ray
from tinkergym.trajectory.trajectory import ONLY_AGENT
worker = ray.remote(num_cpus=0)(EnvWorkerProcess).remote(config, "ray-worker")
ray.get(worker.run.remote((url, token)), timeout=60)
ray.shutdown()
"""


def requests():
    return [
        EpisodeRequest(
            job_id="j",
            episode_id=f"j:1:{index}",
            step=1,
            index=index,
            group=0,
            environment=EnvironmentRef(id="board/TicTacToeVs-v0"),
            seed=11,
            seats={
                ONLY_AGENT: SeatPlan(
                    policy="j",
                    policy_version=0,
                    model="bytes",
                    sampling_seed=index,
                    sampling=Sampling(max_turn_tokens=8),
                )
            },
            limits=Limits(),
            # The last would also give the same in a process of its own, where a worker has room for it.
            executor="process" if index == 7 else "thread",
            lease_id=f"lease-{index}",
            lease_seconds=60.0,
        )
        for index in range(8)
    ]


class Pool:
    """What a pool offers to rollout workers, with a policy that follows a script."""

    def __init__(self):
        self.waiting = deque(requests())
        self.results = {}
        self.all_done = threading.Event()

    def sample(self, requests, deliver, *, together=False):
        SAMPLER.submit(requests, deliver)

    def lease(self, request, job_id):
        count = min(request.max_episodes, len(self.waiting))
        episodes = [self.waiting.popleft() for _ in range(count)]
        if not episodes:
            self.all_done.wait(request.wait_seconds)
        state = JobState.COMPLETED if self.all_done.is_set() else JobState.RUNNING
        return LeaseReply(episodes=episodes, job_state=state)

    def submit(self, request, job_id):
        self.results |= {result.episode_id: result.trajectory for result in request.results}
        if len(self.results) == 8:
            self.all_done.set()
        return SubmitReply(verdicts=["accepted"] * len(request.results))

    def renderer(self, model):
        return BUNDLE


@pytest.fixture(params=["unix", "tcp"])
def pool(request, tmp_path_factory):
    """A pool's endpoint at a URL, and what arrives there."""
    sockets = request.param == "unix"
    url = unix_url(tmp_path_factory.mktemp("p") / "s.sock") if sockets else any_port()
    service = Pool()
    endpoint = PoolEndpoint(service, url, TOKEN)
    yield service, endpoint.url
    endpoint.close()


def here(executor):
    results = play(
        requests(), sampler=SAMPLER, renderer=RENDERER, make_env=make_environment, executor=executor
    )
    return {result.episode_id: result.trajectory for result in results}


@pytest.fixture(scope="module")
def expected():
    return here(ThreadExecutor())


def test_starts_group_equal_and_ends_it_equal_by_the_script(expected):
    records = {json.dumps(trajectory.model_dump(mode="json")) for trajectory in expected.values()}
    assert len(expected) == 8
    assert len(records) == 1
    assert len(next(iter(expected.values())).turns) > 1


@pytest.mark.parametrize(
    "executor",
    [InlineExecutor(), pytest.param(ProcessExecutor(2), marks=pytest.mark.full("starts processes"))],
    ids=["inline", "process"],
)
def test_plays_here_and_in_separate_processes(expected, executor):
    assert here(executor) == expected


def test_plays_by_a_worker_over_http(expected, pool):
    service, url = pool
    with Connection(url, token=TOKEN) as connection:
        worker = RolloutWorker(
            HttpRolloutTransport(connection, Routes.of_pool()), make_env=make_environment, max_episodes=5
        )
        worker.run()
    assert service.results == expected


@pytest.mark.service
@pytest.mark.full("starts Ray")
@pytest.mark.parametrize("pool", ["tcp"], indirect=True)
def test_plays_by_an_environment_worker_in_ray_actor(expected, pool):
    service, url = pool
    # The names of Ray's sockets below it have to be short.
    with tempfile.TemporaryDirectory(prefix="ray") as home:
        config = ServiceConfig(data_dir=home).model_dump_json()
        # In a program of its own: Ray changes the process that drives it.
        done = subprocess.run(
            [sys.executable, "-c", IN_RAY, url, TOKEN, config, home],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=Path(__file__).parents[3],
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert service.results == expected


HIDING_WORKER = """
import sys
from pathlib import Path

from backend.config import ServiceConfig
from backend.machine_paths import MachinePaths
from backend.workers.env_worker import run_env_worker
from tests.backend.workers.broken_environment import make_broken

url, token, folder = sys.argv[1:]
hide = MachinePaths(ServiceConfig(data_dir=folder)).hidden_in_trajectory
facts = {"worker_id": "w", "run_dir": Path(folder), "max_episodes": 8, "stall_seconds": 60.0}
run_env_worker(url=url, token=token, **facts, make_env=make_broken, hide=hide)
"""


@pytest.mark.parametrize("pool", ["unix"], indirect=True)
def test_hands_in_environments_errors_without_the_services_folders(pool, tmp_path):
    service, url = pool
    # A process, because an environment worker ends its own.
    with subprocess.Popen([sys.executable, "-c", HIDING_WORKER, url, TOKEN, tmp_path]) as worker:
        try:
            assert service.all_done.wait(60)
        finally:
            worker.kill()
    errors = {trajectory.error for trajectory in service.results.values()}
    assert any('File "tests/backend/workers/broken_environment.py"' in error for error in errors)
    assert not [error for error in errors if str(Path(__file__).parents[3]) in error]


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
