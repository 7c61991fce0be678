import pytest

from tinkergym.errors import EnvironmentInfrastructureError
from tinkergym.tools.sandbox import python_run
from tinkergym.tools.sandbox.python_run import run_python


def test_blames_no_policy_for_a_sandbox_that_cannot_start(monkeypatch):
    monkeypatch.setattr(python_run.sys, "executable", "/nowhere/python")
    with pytest.raises(EnvironmentInfrastructureError):
        run_python("1")


def test_blames_no_policy_for_a_launcher_that_dies(monkeypatch, tmp_path):
    launcher = tmp_path / "launcher.py"
    launcher.write_text("raise SystemExit('out of luck')")
    monkeypatch.setattr(python_run, "_LAUNCHER", launcher)
    with pytest.raises(EnvironmentInfrastructureError):
        run_python("1", isolation="limits")
