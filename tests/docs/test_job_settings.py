"""The page of a job's settings names every one there is, and none that is not."""

import re
from pathlib import Path

from tinkergym.algorithms import GRPO, PPO, RLOO, DrGRPO, ReinforcePlusPlus, RunningBaseline
from tinkergym.schema.jobs.parts import Limits, Sampling
from tinkergym.schema.jobs.rl import RLSpec

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "job_settings.md"
ALGORITHMS = (GRPO, DrGRPO, RLOO, ReinforcePlusPlus, RunningBaseline, PPO)


def test_every_setting_of_a_job_is_on_the_page():
    rows = re.findall(r"^\| (`[^|]+) \| [^|]*\|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)} - {
        "PPO",
        "GRPO",
        "ReinforcePlusPlus",
        "RunningBaseline",
    }
    assert named == {name for model in (RLSpec, *ALGORITHMS, Sampling, Limits) for name in model.model_fields}
