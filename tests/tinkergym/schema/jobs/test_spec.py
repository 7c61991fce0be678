"""A setting takes effect or is refused: none is declared that nothing reads."""

import re
from pathlib import Path

from tinkergym.schema.algorithm_registry import BUILT_IN
from tinkergym.schema.jobs.parts import Limits, Sampling
from tinkergym.schema.jobs.spec import KINDS

ROOT = Path(__file__).parents[4]
RULES = ROOT / "tinkergym" / "schema" / "jobs" / "rules"


def test_declares_no_setting_that_nothing_reads():
    read = {
        name
        for package in ("tinkergym", "backend")
        for path in (ROOT / package).rglob("*.py")
        if path.parent != RULES  # They say what cannot be combined.
        for name in re.findall(r"\.(\w+)", path.read_text("utf-8"))
    }
    models = [*KINDS.values(), *BUILT_IN.values(), Sampling, Limits]
    assert {name for model in models for name in model.model_fields} <= read
