import itertools
import json
import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from tinkergym.cli.main import app

KINDS = list(itertools.product(("single", "multi"), ("free", "dependent")))


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, ["new-env", *arguments])


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(("turns", "data"), KINDS)
def test_keeps_pack_within_4_files_and_60_lines(run, tmp_path, turns, data):
    assert run("my-game", "--turns", turns, "--data", data).exit_code == 0
    written = files(tmp_path / "my-game")
    assert len(written) <= 4
    assert sum(len(path.read_text().splitlines()) for path in written) <= 60


def python(code, *arguments, target, **more):
    environ = {**os.environ, "PYTHONPATH": str(target), "COLUMNS": "200"}
    ran = subprocess.run(
        [sys.executable, *code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=environ,
        **more,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.mark.full("builds and installs packages")
def test_installs_tests_and_lists_every_kind_of_pack_with_cell(run, tmp_path):
    for turns, data in KINDS:
        run(f"my-{turns}-{data}", "--turns", turns, "--data", data)
    folders = [f"my-{turns}-{data}" for turns, data in KINDS]
    target = tmp_path / "installed"
    install = ["install", "-q", "--no-deps", "--no-build-isolation", "--target", str(target)]
    python(
        ["-m", "pip"], "--disable-pip-version-check", *install, *(f"./{name}" for name in folders), target=""
    )
    tested = python(["-m", "pytest"], "-q", "-p", "no:cacheprovider", *folders, target=target)
    assert re.search(r"\d+ passed", tested)
    listed = json.loads(python(["-m", "tinkergym.cli.main"], "envs", "--json", target=target))
    cells = {one["pack"]: (one["turns"], one["data"]) for one in listed["environments"]}
    assert {name: cells[name] for name in folders} == dict(zip(folders, KINDS, strict=True))
    makes = [f"{library}.make('my-multi-free/MyMultiFree-v0')" for library in ("gymnasium", "tinkergym")]
    observations = {
        python(["-c", f"import gymnasium, tinkergym; print({make}.reset(seed=3)[0])"], target=target)
        for make in makes
    }
    assert observations == {"I think of a number from 1 to 20. You have 5 guesses.\n"}
