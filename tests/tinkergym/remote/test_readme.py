"""In an interpreter of its own: what another test registered must not help."""

import re
import subprocess
import sys
from pathlib import Path

from tinkergym.remote.client import Client

README = Path(__file__).parents[3] / "README.md"
PACK = "board/TicTacToeVs-v0"


def run(code):
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_readmes_script_runs_as_it_stands(start_service):
    start_service(lambda prompt: "a1", environments=[PACK])
    # The first block is the smallest environment, which tests/docs runs.
    _, code = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert run(code).startswith("1 ")


def test_gymnasium_makes_the_environments_of_packs_for_who_only_attaches(start_service):
    start_service(environments=[PACK])
    job = Client().train(PACK, steps=1)
    job.wait()
    code = f"""
import gymnasium as gym, tinkergym as tg
job = tg.Client().attach({job.id!r})
print(gym.make({PACK!r}).reset(seed=1)[0])
"""
    assert "You are" in run(code)
