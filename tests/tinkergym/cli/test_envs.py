"""`tinkergym envs`: what is installed, sound and broken."""

import importlib
import json
import sys

import pytest
from typer.testing import CliRunner

from tinkergym.cli.console import out
from tinkergym.cli.main import app
from tinkergym.registration import listing
from tinkergym.registration.packs import find_packs

SOUND = """
import gymnasium as gym
import tinkergym as tg

class Fine(tg.TextEnv):
    def __init__(self, split="train", render_mode=None):
        print("noise that a program must not have to read")
        self.tasks = tg.tasks.SequenceTasks({"train": [{}], "test": [{}]}, split=split)

class Silent(gym.Env):
    observation_space = gym.spaces.Dict({"text": tg.spaces.Text(), "score": gym.spaces.Discrete(4)})
    action_space = tg.spaces.Text()

class Raises(tg.TextEnv):
    def __init__(self):
        raise OSError("no licence found")

print("noise of the import")
"""
KINDS = ("Fine", "Silent", "Raises")
HOSTILE = {
    "exits": "import os\nos._exit(0)",
    "crashes": "import ctypes\nctypes.string_at(0)",
    "interrupts": "raise KeyboardInterrupt",
    "closes": "import os, time\nos.closerange(3, 100)\ntime.sleep(600)",
    "shouts": r"""
import os
for number in range(1, 100):
    try:
        os.write(number, b'{"id": "shouts/Env-v0", "error": "\x1b[2J"}\n' * 50)
    except OSError:
        pass
raise BaseException("\x1b[31m")
""",
    "later": """
import os, threading, tinkergym
class Env(tinkergym.SingleTurnEnv):
    def __init__(self): threading.Timer(0.05, os._exit, [7]).start()
""",
}
POINTS = {
    "listed": "\n".join(f"listed/{kind}-v0 = listed_pack:{kind}" for kind in KINDS),
    "unlucky": "unlucky/Env-v0 = unlucky_pack:Env",
    "greedy": "greedy/Fine-v0 = listed_pack:Fine\nboard/TicTacToeVs-v0 = listed_pack:Fine",
}


@pytest.fixture(autouse=True)
def packs(tmp_path, monkeypatch):
    """Packs really installed: all kinds of environments, one that cannot be imported, one that claims ids."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, source in (("listed", SOUND), ("unlucky", "import no_such_package"), ("greedy", "")):
        install(tmp_path, name, source, POINTS[name])
    yield
    monkeypatch.undo()
    find_packs()


def install(folder, name, source, points=""):
    (folder / f"{name}_pack.py").write_text(source)
    info = folder / f"tinkergym_{name}-2.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: tinkergym-{name}\nVersion: 2.5\n")
    points = points or f"{name}/Env-v0 = {name}_pack:Env"
    (info / "entry_points.txt").write_text(f"[tinkergym.envs]\n{points}\n")
    importlib.invalidate_caches()


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    """So that no column is folded, whatever the terminal and the tests before."""
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setitem(vars(out), "_width", None)


_listed = {}


@pytest.fixture
def listed_once(monkeypatch):
    """List the same packs once for all tests of how they are shown: that starts a process."""

    def once(packs, listed=listing.list_environments):
        key = tuple(pack.name for pack in packs)
        if key not in _listed:
            _listed[key] = list(listed(packs))
        return _listed[key]

    monkeypatch.setattr(listing, "list_environments", once)


def run(*arguments):
    return CliRunner().invoke(app, ["envs", *arguments])


@pytest.mark.usefixtures("listed_once")
def test_lists_cell_spaces_and_splits_below_pack_and_version():
    result = run("listed", "board")
    lines = {line.split()[0]: " ".join(line.split()) for line in result.stdout.splitlines()}
    assert lines["listed/Fine-v0"] == "listed/Fine-v0 multi dependent Text -> Text train test"
    assert lines["tinkergym-listed"] == "tinkergym-listed 2.5"
    assert lines["listed/Silent-v0"].startswith("listed/Silent-v0 - - Dict(score: Discrete(4),")
    assert "text: Text) -> Text" in result.stdout
    assert "board/TicTacToeVs-v0" in lines


def test_keeps_short_words_whole_on_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    assert {"multi", "dependent", "test", "train"} <= set(run("listed").stdout.split())


def test_folds_no_line_in_a_pipe(monkeypatch):
    monkeypatch.delenv("COLUMNS")
    monkeypatch.setattr(out, "width", 50)
    lines = run("board").stdout.splitlines()
    assert all("->" in line for line in lines if "-v0" in line)
    assert len([line for line in lines if "->" not in line]) <= 2


@pytest.mark.usefixtures("listed_once")
def test_reports_what_is_broken_with_its_reason_beside_the_rest():
    result = run("listed", "unlucky", "greedy", "bandit")
    assert result.exit_code == 0
    assert "listed/Raises-v0 cannot be created" in result.output
    assert "no licence found" in result.output
    assert "unlucky/Env-v0 cannot be created" in result.output
    assert "No module named 'no_such_package'" in result.output
    assert "board/ belongs to tinkergym-board" in result.output
    assert "bandit/Bandit-v0" in result.stdout
    assert "Traceback" not in result.output


@pytest.mark.usefixtures("listed_once")
def test_gives_programs_json_and_nothing_else():
    listed = json.loads(run("--json", "listed", "unlucky", "greedy", "bandit").stdout)
    environments = {one["id"]: one for one in listed["environments"]}
    fine = environments["listed/Fine-v0"]
    assert (fine["turns"], fine["data"], fine["splits"]) == ("multi", "dependent", ["train", "test"])
    assert "no licence found" in environments["listed/Raises-v0"]["error"]
    packs = {pack["name"]: pack for pack in listed["packs"]}
    assert packs["listed"]["version"] == "2.5"
    assert "no_such_package" in environments["unlucky/Env-v0"]["error"]
    assert packs["greedy"]["environments"] == ["greedy/Fine-v0"]
    assert "tinkergym-board" in packs["greedy"]["refused"][0]


def test_skips_in_the_path_what_python_skips(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    result = run("listed")
    assert (result.exit_code, "listed/Fine-v0" in result.stdout) == (0, True), result.output


@pytest.fixture
def errors(tmp_path):
    """List packs as a program does; return the error of each environment."""

    def listed(*names):
        result = run("--json", *names)
        assert result.exit_code == 0
        return {one["id"]: one["error"] for one in json.loads(result.stdout)["environments"]}

    return listed


@pytest.mark.parametrize(
    "names",
    [
        ("crashes", "interrupts", "shouts"),
        pytest.param(
            ("exits", "closes", "later"), marks=pytest.mark.full("starts a process after each of them")
        ),
    ],
)
def test_loses_only_entry_of_pack_that_ends_process_or_writes(tmp_path, errors, capfd, names):
    for name in names:
        install(tmp_path, name, HOSTILE[name])
    found = errors(*names, "listed")
    assert capfd.readouterr().out == ""
    said = {"exits": "exit code 0", "crashes": "SIGSEGV", "interrupts": "KeyboardInterrupt"}
    for name in {*names} - {"later"}:
        assert found[f"{name}/Env-v0"]
        assert said.get(name, "") in found[f"{name}/Env-v0"]
    assert found["listed/Fine-v0"] == found["listed/Silent-v0"] == ""
    assert not any("\x1b" in error for error in found.values())
    assert not {f"{name}_pack" for name in (*names, "listed")} & set(sys.modules)


def test_names_environment_that_hangs(tmp_path, errors, monkeypatch):
    monkeypatch.setattr(listing, "MAKE_SECONDS", 0.2)
    points = "\n".join(f"hangs/Env-v{version} = hangs_pack:Env" for version in range(5))
    install(tmp_path, "hangs", "import time\ndef Env(): time.sleep(600)", points)
    found = errors("hangs")
    assert ["0.2 s" in found[f"hangs/Env-v{version}"] for version in range(5)] == [True] * 3 + [False] * 2
    assert "3 others" in found["hangs/Env-v4"]


def test_rejects_uninstalled_pack_with_those_that_are_installed():
    result = run("nowhere")
    assert result.exit_code == 2
    assert "no installed pack" in result.output
    assert "listed" in result.output
