"""Scripts that end before their job: what they hold goes back to the service at once."""

import signal
import subprocess
import sys

import pytest

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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_script_that_is_told_to_end_hands_its_episodes_back(service, tmp_path, number):
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
        process.send_signal(number)
        said = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert len(job.left) == 1, said
    assert set(job.left) == job.workers
    assert process.returncode in {-number, 1, 130}
    assert "waits for a client" in said
