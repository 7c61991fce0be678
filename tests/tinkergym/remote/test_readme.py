"""In an interpreter of its own: what another test registered must not help."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[3] / "README.md"
PACK = "board/TicTacToeVs-v0"


def run(code):
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    return ran


def test_runs_the_readmes_script_as_it_stands(start_service):
    start_service(lambda prompt: "a1", environments=[PACK])
    # The first block is the smallest environment, which tests/docs runs.
    _, code = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert run(code).stdout.startswith("1 ")


def test_makes_environments_of_packs_for_who_only_attaches(start_service, connect):
    start_service(environments=[PACK])
    job = connect().train(PACK, steps=1)
    job.wait()
    code = f"""
import gymnasium as gym, tinkergym as tg
job = tg.Client().attach({job.id!r})
print(gym.make({PACK!r}).reset(seed=1)[0])
"""
    assert "You are" in run(code).stdout


@pytest.mark.parametrize(
    ("end", "said"),
    [("", True), pytest.param("job.close()", False, marks=pytest.mark.full("trains in one more process"))],
)
def test_says_when_script_ends_before_the_job_it_plays(start_service, end, said):
    start_service(lambda prompt: "1")
    code = f"""
import tinkergym as tg
class Env(tg.SingleTurnEnv):
    def ask(self, options): return "?"
    def score(self, answer): return 1.0
job = tg.Client().train(Env, steps=100_000, algorithm=tg.GRPO(group_size=2, groups_per_step=1))
{end}
"""
    assert ("end the script with job.wait()" in run(code).stderr) is said
