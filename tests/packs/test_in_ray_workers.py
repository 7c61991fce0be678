"""A pack works in a Ray worker that imported nothing: its entry point is enough."""

import os
import subprocess
import sys

import pytest

import tinkergym as tg

pytestmark = [pytest.mark.service, pytest.mark.full("starts Ray")]

SCRIPT = """
import ray

ray.init(num_cpus=1, include_dashboard=False, logging_level="ERROR", log_to_driver=False)


@ray.remote(max_calls=1)  # a fresh process each
def play(env_id, seed, action):
    import sys

    assert not any(name.startswith("tinkergym") for name in sys.modules)
    import tinkergym

    env = tinkergym.make(env_id)
    return [env.reset(seed=seed), env.step(action)]


for env_id, action in (("bandit/Bandit-v0", "red"), ("math/Arithmetic-v0", "5")):
    print(ray.get(play.remote(env_id, 3, action)))
"""


def test_plays_installed_pack_alike_in_worker_that_imported_nothing(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={**os.environ, "RAY_DISABLE_IMPORT_WARNING": "1", "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    here = []
    for env_id, action in (("bandit/Bandit-v0", "red"), ("math/Arithmetic-v0", "5")):
        env = tg.make(env_id)
        here.append(str([env.reset(seed=3), env.step(action)]))
    assert ran.stdout.splitlines()[-2:] == here
