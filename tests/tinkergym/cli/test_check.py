import json
from pathlib import Path

import pytest

SOUND = "board/TicTacToeVs-v0"


@pytest.fixture
def broken(tmp_path, monkeypatch):
    (tmp_path / "brokenly.py").write_text(
        "import random\n"
        "import tinkergym as tg\n"
        "class Env(tg.SingleTurnEnv):\n"
        "    def ask(self, options): return f'{random.random()}?'\n"
        "    def score(self, answer): return float(answer[0] == '4')\n"
    )
    monkeypatch.chdir(tmp_path)
    return "brokenly:Env"


def test_prints_a_line_per_check_and_exits_with_0(tg_run):
    result = tg_run("check", SOUND)
    assert result.exit_code == 0
    assert "ok      hostile text" in result.output
    assert f"{SOUND}: " in result.output
    assert "0 failed" in result.output


def test_says_what_is_wrong_and_to_do_and_exits_1(tg_run, broken):
    result = tg_run("check", broken)
    assert result.exit_code == 1
    assert (
        "failed  hostile text           an empty answer as the answer ('') raises IndexError" in result.output
    )
    assert "failed  global randomness" in result.output
    assert "let a bad answer cost something" in result.output
    assert "Traceback" not in result.output


def test_says_once_that_an_environment_cannot_be_reset(tg_run, broken, tmp_path):
    (tmp_path / "unresettable.py").write_text(
        "import tinkergym as tg\n"
        "class Env(tg.SingleTurnEnv):\n"
        "    def ask(self, options): raise KeyError('tasks.jsonl')\n"
        "    def score(self, answer): return 0.0\n"
    )
    result = tg_run("check", "unresettable:Env")
    assert result.exit_code == 1
    assert result.output.count("tasks.jsonl") == 1
    assert "failed  reset                  KeyError: 'tasks.jsonl'" in result.output
    assert "skipped same seed              not run: reset failed" in result.output
    assert "0 ok, 1 failed" in result.output


def test_prints_json_for_scripts(tg_run, broken):
    result = tg_run("check", broken, "--json")
    found = json.loads(result.output)
    assert (result.exit_code, found["ok"]) == (1, False)
    by_name = {check["check"]: check for check in found["checks"]}
    assert by_name["hostile text"]["outcome"] == "failed"
    assert by_name["deltas"]["outcome"] == "ok"


def test_runs_one_check_alone(tg_run, broken):
    result = tg_run("check", broken, "--only", "deltas", "--only", "closes twice")
    assert result.exit_code == 0
    assert "2 ok, 0 failed" in result.output
    wrong = tg_run("check", broken, "--only", "delta")
    assert (wrong.exit_code, "there is no check 'delta'" in wrong.output) == (2, True)


def test_passes_arguments_to_the_environment(tg_run):
    result = tg_run("check", SOUND, "--kwargs", '{"opponent": "nobody"}', "--env-set", "size=4")
    assert result.exit_code == 1
    assert "failed  make" in result.output
    assert "nobody" in result.output
    assert tg_run("check", SOUND, "--kwargs", "{").exit_code == 2


def test_runs_pettingzoos_checks_on_a_game(tg_run):
    result = tg_run("check", "board/TicTacToe-v0")
    assert result.exit_code == 0
    assert "ok      pettingzoo api" in result.output


def test_suggests_close_matches_for_unknown_id(tg_run):
    result = tg_run("check", "board/TicTacToVs-v0")
    assert result.exit_code == 2
    assert "did you mean" in result.output
    assert "fix the constructor" not in result.output


def test_says_in_one_sentence_that_class_is_no_environment(tg_run, tmp_path, monkeypatch):
    (tmp_path / "hardly.py").write_text("class Nim: pass\n")
    monkeypatch.chdir(tmp_path)
    result = tg_run("check", "hardly:Nim")
    assert result.exit_code == 1
    assert "hardly:Nim does not create an environment, but a Nim" in result.output


GAME = """
import tinkergym as tg

class Nim(tg.TextGame):
    def begin(self, rng):
        self.left = int(rng.integers(8, 16))

    def observe(self, player):
        return f"Stones: {self.left}"

    def legal(self, player):
        return ["1", "2", "3"][: self.left]

    def play(self, player, move):
        self.left -= int(move)
        return 1.0 if self.left == 0 else None
"""


def test_checks_own_game_by_its_class_against_an_opponent(tg_run, tmp_path, monkeypatch):
    (tmp_path / "gamely.py").write_text(GAME)
    monkeypatch.chdir(tmp_path)
    result = tg_run("check", "gamely:Nim")
    assert (result.exit_code, "0 failed" in result.output) == (0, True), result.output


def test_reports_module_that_breaks_on_import_in_one_sentence(tg_run, tmp_path, monkeypatch):
    (tmp_path / "badly.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    result = tg_run("check", "badly:Env")
    assert result.exit_code == 2
    assert "ZeroDivisionError" in result.output
    assert "Traceback" not in result.output


def test_names_argument_that_a_class_lacks_without_blaming_our_lines(tg_run, broken):
    source = Path("brokenly.py").read_text()
    Path("lately.py").write_text(f"{source}\n    def __init__(self, path, size): pass\n")
    result = tg_run("check", "lately:Env")
    assert result.exit_code == 1
    assert "it needs path and size, as in env_kwargs=" in result.output
    assert "settings.py" not in result.output


def test_reads_no_emoji_in_a_name_between_colons(tg_run, broken, tmp_path):
    (tmp_path / "car.py").write_text((tmp_path / "brokenly.py").read_text().replace("class Env", "class car"))
    assert "car:car: " in tg_run("check", "car:car").output


def test_tells_how_to_name_a_class_that_is_not_found(tg_run, broken):
    result = tg_run("check", "Reverse")
    assert result.exit_code == 2
    assert "module:Reverse" in " ".join(result.output.split())
    for name, hint in (("brokenly:Enw", "did you mean brokenly:Env?"), ("brokenly:Zzz", "brokenly has Env")):
        result = tg_run("check", name)
        assert (result.exit_code, hint in result.output) == (2, True)
