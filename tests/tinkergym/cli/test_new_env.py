"""`tinkergym new-env`, as it is typed: each kind of pack is written, really installed, listed and tested."""

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
def test_a_pack_has_at_most_4_files_and_60_lines(run, tmp_path, turns, data):
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


@pytest.mark.slow
def test_every_kind_of_pack_installs_passes_its_test_and_is_listed_with_its_cell(run, tmp_path):
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


def test_it_says_what_was_written_and_what_to_type_next(run):
    said = run("my-game").output
    for part in (
        "my-game/MyGame-v0",
        "my-game/pyproject.toml",
        "cd my-game",
        "pip install -e .",
        "pytest",
        "--rollout client",
    ):
        assert part in said


@pytest.mark.parametrize("name", ["My-Game", "1st", "a--b", "-x", "a b", "../up", "a/b", "", "é", "x" * 41])
def test_a_bad_name_is_refused_and_nothing_is_written(run, tmp_path, name):
    refused = run("--", name)
    assert refused.exit_code == 2
    assert "is no name for a pack" in refused.output
    assert files(tmp_path) == []


def test_the_name_of_an_installed_pack_is_refused(run, tmp_path):
    refused = run("board")
    assert (refused.exit_code, "installed already" in refused.output) == (2, True)
    assert files(tmp_path) == []


def test_a_folder_that_is_there_is_left_alone(run, tmp_path):
    (tmp_path / "my-game").mkdir()
    (tmp_path / "my-game" / "mine.txt").write_text("precious")
    refused = run("my-game")
    assert (refused.exit_code, "is there already" in refused.output) == (1, True)
    assert [path.name for path in files(tmp_path)] == ["mine.txt"]


def test_a_disk_that_fills_up_leaves_no_half_of_a_pack(run, tmp_path, monkeypatch):
    from pathlib import Path

    write = Path.write_text

    def full(self, text, **settings):
        if self.name == "__init__.py":
            raise OSError(28, "No space left on device")
        return write(self, text, **settings)

    monkeypatch.setattr(Path, "write_text", full)
    refused = run("my-game")
    assert (refused.exit_code, "No space left" in refused.output) == (1, True)
    assert not (tmp_path / "my-game").exists()
