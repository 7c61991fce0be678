"""`tinkergym envs`: what is installed, sound and broken."""

import importlib
import json
import sys

import pytest
from typer.testing import CliRunner

from tinkergym import listing
from tinkergym.cli.console import out
from tinkergym.cli.main import app
from tinkergym.packs import find_packs

SOUND = """
import time
import gymnasium as gym
import tinkergym as tg

class Fine(tg.TextEnv):
    def __init__(self, split="train", render_mode=None):
        print("noise that a program must not have to read")
        self.tasks = tg.SequenceTasks({"train": [{}], "test": [{}]}, split=split)

class Silent(gym.Env):
    observation_space = gym.spaces.Dict({"text": tg.spaces.Text(), "score": gym.spaces.Discrete(4)})
    action_space = tg.spaces.Text()

class Raises(tg.TextEnv):
    def __init__(self):
        raise OSError("no licence found")

class Hangs(tg.TextEnv):
    def __init__(self):
        time.sleep(600)

print("noise of the import")
"""
KINDS = ("Fine", "Silent", "Raises", "Hangs")
POINTS = {
    "listed": "\n".join(f"listed/{kind}-v0 = listed_pack:{kind}" for kind in KINDS),
    "unlucky": "unlucky/Env-v0 = unlucky_pack:Env",
    "greedy": "greedy/Fine-v0 = listed_pack:Fine\nboard/TicTacToeVs-v0 = listed_pack:Fine",
}


@pytest.fixture(autouse=True)
def packs(tmp_path, monkeypatch):
    """Packs really installed: all kinds of environments, one that cannot be imported, one that claims ids."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(listing, "MAKE_SECONDS", 0.3)
    monkeypatch.setenv("COLUMNS", "200")
    for name, source in (("listed", SOUND), ("unlucky", "import no_such_package"), ("greedy", "")):
        (tmp_path / f"{name}_pack.py").write_text(source)
        info = tmp_path / f"tinkergym_{name}-2.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tinkergym-{name}\nVersion: 2.5\n")
        (info / "entry_points.txt").write_text(f"[tinkergym.envs]\n{POINTS[name]}\n")
    importlib.invalidate_caches()
    yield
    sys.modules.pop("listed_pack", None)
    monkeypatch.undo()
    find_packs()


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    """So that no column is folded, whatever the terminal that the tests run in."""
    monkeypatch.setattr(out, "width", 200)


def run(*arguments):
    return CliRunner().invoke(app, ["envs", *arguments])


def test_a_line_says_cell_spaces_and_splits_below_its_pack_and_version():
    result = run("listed", "board")
    lines = {line.split()[0]: " ".join(line.split()) for line in result.stdout.splitlines()}
    assert lines["listed/Fine-v0"] == "listed/Fine-v0 multi dependent Text -> Text train test"
    assert lines["tinkergym-listed"] == "tinkergym-listed 2.5"
    assert "- - Dict(score: Discrete(4), text: Text) -> Text" in lines["listed/Silent-v0"]
    assert "board/TicTacToeVs-v0" in lines


def test_on_a_narrow_terminal_short_words_stay_whole(monkeypatch):
    monkeypatch.setattr(out, "width", 50)
    assert {"multi", "dependent", "test", "train"} <= set(run("listed").stdout.split())


def test_what_is_broken_is_reported_with_its_reason_and_the_rest_is_listed():
    result = run()
    assert result.exit_code == 0
    assert "listed/Raises-v0 cannot be made" in result.output
    assert "no licence found" in result.output
    assert "listed/Hangs-v0 cannot be made: it was not made within 0.3 s" in result.output
    assert "unlucky/Env-v0 cannot be made" in result.output
    assert "No module named 'no_such_package'" in result.output
    assert "board/ belongs to tinkergym-board" in result.output
    assert "bandit/Bandit-v0" in result.stdout
    assert "Traceback" not in result.output


def test_programs_get_json_and_nothing_else():
    listed = json.loads(run("--json", "listed", "unlucky", "greedy").stdout)
    environments = {one["id"]: one for one in listed["environments"]}
    fine = environments["listed/Fine-v0"]
    assert (fine["turns"], fine["data"], fine["splits"]) == ("multi", "dependent", ["train", "test"])
    assert "no licence found" in environments["listed/Raises-v0"]["error"]
    packs = {pack["name"]: pack for pack in listed["packs"]}
    assert packs["listed"]["version"] == "2.5"
    assert "no_such_package" in environments["unlucky/Env-v0"]["error"]
    assert packs["greedy"]["environments"] == ["greedy/Fine-v0"]
    assert "tinkergym-board" in packs["greedy"]["refused"][0]


def test_a_pack_that_is_not_installed_is_refused_with_those_that_are():
    result = run("nowhere")
    assert result.exit_code == 2
    assert "no installed pack is called 'nowhere'" in result.output
    assert "listed" in result.output
