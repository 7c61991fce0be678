"""The README's figures and its picture are those of the result files."""

import json
import re
from pathlib import Path

from scripts import draw_learning_curve

ROOT = Path(__file__).parents[2]


def test_takes_seconds_per_step_from_the_comparison_with_trl():
    result = json.loads((ROOT / "benchmarks" / "results" / "versus_trl.json").read_text(encoding="utf-8"))
    measured = [
        re.search(r"\(([\d.]+) against ([\d.]+) s", f["measured"]).groups() for f in result["figures"]
    ]
    rows = re.findall(
        r"^\| seconds per GRPO step, .*? \| \*\*([\d.]+)\*\* \| ([\d.]+) \|",
        (ROOT / "README.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert rows == measured


def test_draws_picture_from_the_result():
    result = json.loads(draw_learning_curve.RESULT.read_text(encoding="utf-8"))
    shown = draw_learning_curve.PICTURE.read_text(encoding="utf-8")
    assert shown == draw_learning_curve.draw(result), "run `python scripts/draw_learning_curve.py`"
