"""Tests of `backend.processes.quick_start`."""

import subprocess

import pytest

from backend.processes import quick_start

PROGRAM = """
import gc, sys

collecting = gc.isenabled()

def main():
    print(collecting, gc.isenabled(), sys.argv[1:])
    return 3
"""


@pytest.mark.parametrize("name", ["program.py", "program/__main__.py"])
def test_runs_main_of_a_module_imported_without_collections(tmp_path, monkeypatch, name):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = subprocess.run(
        quick_start.command("program", "one", "two"), capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout) == (3, "False True ['one', 'two']\n"), found.stderr
