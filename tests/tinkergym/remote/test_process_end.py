"""Scripts that end before their job: what they hold goes back to the service at once."""

import signal
import subprocess
import sys
import threading
from queue import SimpleQueue

import pytest

import tinkergym as tg
from tinkergym.remote.process_end import leave_all
from tinkergym.remote.script_episodes import ScriptEpisodes
from tinkergym.schema.episodes import LeaseReply
from tinkergym.schema.events import JobState

pytestmark = pytest.mark.service

SCRIPT = """
import sys, time
import gymnasium as gym
import tinkergym as tg

class Slow(gym.Env):
    observation_space = action_space = gym.spaces.Text(40)
    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        return "say", {}
    def step(self, action):
        time.sleep(600)

if __name__ == "__main__":
    client = tg.Client(sys.argv[1], api_key=sys.argv[2])
    job = client.train(Slow, steps=2, algorithm=tg.GRPO(group_size=2, groups_per_step=2))
    job.wait()
"""


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full("as SIGTERM"))]
)
def test_hands_episodes_back_when_script_is_told_to_end(service, tmp_path, monkeypatch, number):
    # A signal in the middle of an import would find the module locked for the thread that plays.
    waits = threading.Event()
    monkeypatch.setattr(service, "called", lambda call: "EVENT" in call and waits.set())
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), service.url, service.api_key], stderr=subprocess.PIPE, text=True
    )
    try:
        with service.jobs.changed:
            assert service.jobs.changed.wait_for(lambda: service.jobs.newest_first(), timeout=60)
            job = service.jobs.get(service.jobs.newest_first()[0].job_id)
            assert service.jobs.changed.wait_for(lambda: job.leased, timeout=60)
        assert waits.wait(60)
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert len(job.left) == 1, said
    assert set(job.left) == job.workers
    assert process.returncode in {-number, 1, 130}
    assert "waits for a client" in said


def test_keeps_a_request_open_while_a_step_is_played(service, client, monkeypatch):
    """Its connection breaks with the process, and the episodes need not wait until their leases run out."""
    lease, asked, saw = service.jobs.lease, threading.Event(), []

    def noting(job_id, request):
        if len(request.renew) == 4 and request.max_episodes and request.wait_seconds:
            asked.set()
        return lease(job_id, request)

    class Waits(tg.SingleTurnEnv):
        def ask(self, options):
            return "?"

        def score(self, answer):
            saw.append(asked.wait(120))
            return 1.0

    monkeypatch.setattr(service.jobs, "lease", noting)
    job = client.train(Waits, steps=1, algorithm=tg.GRPO(group_size=2, groups_per_step=2))
    assert job.wait().state == "completed"
    assert saw == [True] * 4


FORKING = """
import os
from tinkergym.remote.process_end import before_the_end

before_the_end(lambda: print("handed back by", os.getpid() == script, flush=True))
script = os.getpid()
if os.fork():
    os.wait()
"""


def test_hands_nothing_back_for_script_when_forked_child_ends():
    ran = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "handed back by True\n"), ran.stderr


class Together:
    """A service that answers a goodbye only when all of them have come."""

    def __init__(self, scripts: int) -> None:
        self.everyone = threading.Barrier(scripts, timeout=60)
        self.together: SimpleQueue[bool] = SimpleQueue()

    def lease(self, request):
        if request.leaving:
            try:
                self.everyone.wait()
                self.together.put(True)
            except threading.BrokenBarrierError:
                self.together.put(False)
        return LeaseReply(episodes=[], lost=[], job_state=JobState.RUNNING)


def test_leaves_all_jobs_of_an_ending_script_together():
    service = Together(5)
    for _ in range(5):
        ScriptEpisodes(service, heartbeat_seconds=600.0)
    leave_all()
    # On a busy machine a script may end before all of them have come.
    assert [service.together.get(timeout=60) for _ in range(5)] == [True] * 5
