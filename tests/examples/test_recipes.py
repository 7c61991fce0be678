"""Every recipe runs in its short form against a real service, and keeps what the others promise too."""

import json
import os
import runpy
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.common import service

EXAMPLES = Path(__file__).parents[2] / "examples"
RECIPES = sorted(path.parent.name for path in EXAMPLES.glob("*/train.py"))


@pytest.fixture(scope="module")
def running():
    # TextArena imports much; on a busy machine that takes longer than the default allows.
    with service(None, "limits.job_check_seconds=120") as running:
        yield running


def prepare(name, monkeypatch, tmp_path):
    """Bring what a recipe needs besides this project; `scripts/test_extras.sh` has the real packages."""
    if name == "alfworld":
        if not find_spec("alfworld"):
            pytest.skip("needs the package alfworld: scripts/test_extras.sh alfworld")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
    if name == "published_env" and "TINKERGYM_VERIFIERS_PYTHON" not in os.environ:
        # A counterpart of verifiers, which says that it is one.
        monkeypatch.setenv("TINKERGYM_VERIFIERS_PYTHON", sys.executable)
        monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent / "tests" / "counterparts"))


@pytest.mark.service
@pytest.mark.parametrize("name", RECIPES)
def test_the_short_form_runs_to_its_report(running, monkeypatch, tmp_path, name):
    prepare(name, monkeypatch, tmp_path)
    for variable, value in running.environment.items():
        monkeypatch.setenv(variable, value)
    script = EXAMPLES / name / "train.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--short", "--out", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    (result,) = [json.loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert result["recipe"] == name
    evaluated = [step for step, *_ in result["evaluations"]]
    assert evaluated[0] == 0
    assert evaluated[-1] >= 2
    assert len(list(tmp_path.glob("*.png"))) == 1


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_a_short_script_two_configurations_and_a_page(name):
    assert len((EXAMPLES / name / "train.py").read_text().splitlines()) <= 60
    laptop, gpu = (
        tomllib.loads((EXAMPLES / name / f"{file}.toml").read_text()) for file in ("laptop", "gpu")
    )
    assert set(laptop) - {"short"} == set(gpu)
    assert (EXAMPLES.parent / "docs" / "recipes" / f"{name}.md").exists()
