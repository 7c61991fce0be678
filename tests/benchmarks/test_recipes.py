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
def places(tmp_path):
    """The folders of recipes, pictures and results, and a service that no recipe needs."""

    @contextlib.contextmanager
    def no_service():
        yield common.Service("", "", tmp_path, None, 0.0)

    results = tmp_path / "results"
    return recipes.Places(examples=tmp_path, pictures=tmp_path, results=results, service=no_service)


def test_reports_crashed_recipe_as_figure_and_runs_the_others(places, capfd):
    for name, script in (("a_crash", CRASHES), ("rises", RISES)):
        (places.examples / name).mkdir()
        (places.examples / name / "train.py").write_text(script)
    figures = recipes.measure(places)
    assert [(figure.what.split(",")[0], figure.reached) for figure in figures] == [
        ("recipe a_crash", False),
        ("recipe rises", True),
        ("recipe rises", True),
    ]
    assert "crashed" in figures[0].measured
    assert "the pack is not installed" in capfd.readouterr().err
    # The last result of a recipe that crashes is kept.
    assert [path.stem for path in places.results.iterdir()] == ["recipe_rises"]
    assert json.loads((places.results / "recipe_rises.json").read_text())["details"]["runs"]
