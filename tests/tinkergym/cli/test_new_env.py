"""`tinkergym new-env`, as it is typed: each kind of pack is written, really installed, listed and tested."""

import pytest
from typer.testing import CliRunner

from tinkergym.cli.main import app


@pytest.fixture
def run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, ["new-env", *arguments])


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_says_what_was_written_and_what_to_type_next(run):
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
def test_rejects_bad_name_and_writes_nothing(run, tmp_path, name):
    refused = run("--", name)
    assert refused.exit_code == 2
    assert "is not a valid pack name" in refused.output
    assert files(tmp_path) == []


def test_rejects_the_name_of_an_installed_pack(run, tmp_path):
    refused = run("board")
    assert (refused.exit_code, "already installed" in refused.output) == (2, True)
    assert files(tmp_path) == []


def test_leaves_existing_folder_alone(run, tmp_path):
    (tmp_path / "my-game").mkdir()
    (tmp_path / "my-game" / "mine.txt").write_text("precious")
    refused = run("my-game")
    assert (refused.exit_code, "exists already" in refused.output) == (1, True)
    assert [path.name for path in files(tmp_path)] == ["mine.txt"]


def test_leaves_no_half_of_a_pack_on_full_disk(run, tmp_path, monkeypatch):
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
