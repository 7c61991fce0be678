"""Every example runs to its end against a service without a model; `service` tests run them for real."""

import re
import runpy
from pathlib import Path

import pytest

from backend.testing.scripted_service import ScriptedService

EXAMPLES = Path(__file__).parents[2] / "examples"
OWN_LOOP = "own_loop"
"""The service without a model takes no calls of policies: `tests/journeys/test_own_loop.py` runs it."""
PACKS = ["board/TicTacToeVs-v0"]
_NUMBER = re.compile(r"\b(steps(?:: int)?|groups_per_step|episodes)( ?= ?)\d+")


@pytest.fixture
def service(monkeypatch, tmp_path):
    with ScriptedService(lambda prompt: "5", environments=PACKS) as service:
        monkeypatch.setenv("TINKERGYM_URL", service.url)
        monkeypatch.setenv("TINKERGYM_API_KEY", service.api_key)
        monkeypatch.chdir(tmp_path)
        yield service


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py") if path.stem != OWN_LOOP))
def test_runs_the_example_and_trains_one_job(service, capsys, tmp_path, name):
    shorter = tmp_path / f"{name}.py"
    shorter.write_text(_NUMBER.sub(r"\1\g<2>2", (EXAMPLES / f"{name}.py").read_text()))
    runpy.run_path(str(shorter), run_name="__main__")
    view = service.jobs.newest_first()[0]
    assert (view.state, view.step) == ("completed", view.spec.steps)
    assert view.job_id in capsys.readouterr().out


def test_keeps_first_example_short_enough_to_copy():
    code = [
        line
        for line in (EXAMPLES / "tictactoe.py").read_text().splitlines()
        if line and not line.startswith(('"""', "#"))
    ]
    assert len(code) <= 25
