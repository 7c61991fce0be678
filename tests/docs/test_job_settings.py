"""The page of a job's settings names every one there is, and none that is not."""

import re
from pathlib import Path

from tinkergym.schema.algorithm_registry import BUILT_IN
from tinkergym.schema.jobs.parts import Limits, Sampling
from tinkergym.schema.jobs.rl import RLSpec

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "job_settings.md"


def test_documents_every_setting_of_a_job():
    rows = re.findall(r"^\| (`[^|]+) \| [^|]*\|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    named -= {one.__name__ for one in BUILT_IN.values()}
    assert named == {
        name for model in (RLSpec, *BUILT_IN.values(), Sampling, Limits) for name in model.model_fields
    }
