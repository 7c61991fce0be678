import contextlib
import json

import pytest

from benchmarks import common, recipes

CRASHES = 'raise SystemExit("the pack is not installed")\n'
RISES = """\
import json, sys
from pathlib import Path

run = {
    "recipe": "rises", "seed": 0, "control": "--control" in sys.argv, "seconds": 1.0, "rewards": [[1, 0.5]],
    "evaluations": {"held out": [[0, 0.1, 0.0, 0.2], [1, 0.1, 0.0, 0.2]]},
}
if not run["control"]:
    run["evaluations"]["held out"][1] = [1, 0.9, 0.8, 1.0]
Path(sys.argv[sys.argv.index("--out") + 1], "seed-0.json").write_text(json.dumps(run))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folders of recipes, pictures and results, and a service that no recipe needs."""

    @contextlib.contextmanager
    def no_service():
        yield common.Service("", "", tmp_path, None, 0.0)

    monkeypatch.setattr(recipes, "service", no_service)
    monkeypatch.setattr(recipes, "EXAMPLES", tmp_path)
    monkeypatch.setattr(recipes, "PICTURES", tmp_path)
    monkeypatch.setattr(common, "RESULTS", tmp_path / "results")
    return tmp_path


def test_reports_crashed_recipe_as_figure_and_runs_the_others(folder, capfd):
    for name, script in (("a_crash", CRASHES), ("rises", RISES)):
        (folder / name).mkdir()
        (folder / name / "train.py").write_text(script)
    figures = recipes.measure()
    assert [(figure.what.split(",")[0], figure.reached) for figure in figures] == [
        ("recipe a_crash", False),
        ("recipe rises", True),
        ("recipe rises", True),
    ]
    assert "crashed" in figures[0].measured
    assert "the pack is not installed" in capfd.readouterr().err
    # The last result of a recipe that crashes is kept.
    assert [path.stem for path in (folder / "results").iterdir()] == ["recipe_rises"]
    assert json.loads((folder / "results" / "recipe_rises.json").read_text())["details"]["runs"]
