import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

import tinkergym as tg
from tinkergym.evaluation.records import read_records
from tinkergym.schema.evaluate_every import tasks_played

BOARD = "board/TicTacToeVs-v0"


def figures(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_beats_legal_moves_by_gold_and_words_by_them(tg_run):
    means = [
        figures(tg_run("eval", BOARD, "--policy", policy, "--tasks", 20, "--json"))["mean_return"]
        for policy in ("random", "legal", "gold")
    ]
    assert means[0] < means[1] < means[2]


def test_prints_figures_with_intervals_and_stop_reasons(tg_run):
    result = tg_run("eval", BOARD, "--policy", "legal", "--tasks", 12, "-n", 4, "--k", "1,4")
    assert re.search(r"mean return +-?\d\.\d{3} \[-?\d\.\d{3}, -?\d\.\d{3}\]", result.output)
    assert re.search(r"pass@1 +0\.\d{3} \[", result.output)
    assert "pass@4" in result.output
    assert "pass^4" in result.output
    assert "pass^1" not in result.output
    assert re.search(r"terminated +48 █+", result.output)


def test_takes_tasks_by_index(tg_run, tmp_path):
    file = tmp_path / "run.jsonl"
    tg_run("eval", "math/Arithmetic-v0", "--tasks", 5, "--by-index", "--seed", 7, "--out", file)
    found = [(r.seed, r.trajectory.task_index) for r in read_records(file).episodes]
    assert found == [(7, 0), (8, 1), (9, 2), (10, 3), (11, 4)]


def test_draws_different_tasks_as_evaluate_does_and_continues(tg_run, tmp_path):
    file = tmp_path / "run.jsonl"
    found = []
    for tasks in (3, 6):
        run = tg_run("eval", "math/Arithmetic-v0", "--tasks", tasks, "--seed", 7, "--out", file, "--json")
        assert figures(run)["tasks"] == tasks
        found.append([(r.seed - 7, r.trajectory.task_index) for r in read_records(file).episodes])
    first, all_of_them = found
    there = len(tg.make("math/Arithmetic-v0").unwrapped.tasks)
    chosen = tasks_played(there, episodes=6, samples=1, names_split=False, usual=32, seed=7)
    assert all_of_them == [(task, task) for task in chosen]
    assert all_of_them[:3] == first


def test_takes_all_tasks_by_index_when_fewer_than_usual_exist(tg_run, tmp_path, monkeypatch):
    (tmp_path / "few.py").write_text(
        "import tinkergym as tg\n"
        "class Env(tg.SingleTurnEnv):\n"
        "    def __init__(self): self.tasks = tg.tasks.SequenceTasks([{'q': str(i)} for i in range(3)])\n"
        "    def ask(self, options): return self.tasks.choose(self.np_random, options)[1]['q']\n"
        "    def score(self, answer): return 1.0\n"
    )
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "run.jsonl"
    assert figures(tg_run("eval", "few:Env", "--by-index", "--out", file, "--json"))["tasks"] == 3
    assert [r.trajectory.task_index for r in read_records(file).episodes] == [0, 1, 2]
    assert figures(tg_run("eval", "few:Env", "--by-index", "--tasks", 2, "--json"))["tasks"] == 2
    refused = tg_run("eval", "few:Env", "--by-index", "--tasks", 4)
    assert (refused.exit_code, "has 3 tasks, not 4" in refused.output) == (2, True), refused.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--by-index"], f"error: --by-index: {BOARD} is data-free"),
        (["--k", "4"], "pass@4 needs at least 4 episodes per task"),
        (["--k", "x"], "'x' is not a list of numbers"),
        (["--policy", "random", "--temperature", "1"], "error: --temperature: "),
        (["--policy", "legal", "--top-p", "0.9"], "error: --top-p: "),
        (["--policy", "gold", "--top-k", "3"], "error: --top-k: "),
    ],
)
def test_exits_with_2_and_one_sentence_on_impossible_requests(tg_run, arguments, message):
    result = tg_run("eval", BOARD, *arguments)
    assert (result.exit_code, message in result.output) == (2, True), result.output


def test_rejects_file_of_other_settings_and_leaves_it_alone(tg_run, tmp_path):
    file = tmp_path / "run.jsonl"
    tg_run("eval", BOARD, "--tasks", 3, "--out", file)
    before = file.read_bytes()
    result = tg_run("eval", BOARD, "--tasks", 3, "--policy", "legal", "--out", file)
    assert (result.exit_code, "policy was 'random'" in result.output) == (1, True)
    assert file.read_bytes() == before


@pytest.mark.parametrize("policy", ["job-1", "nano"])
def test_plays_at_temperature_0_as_python_does_and_says_so(tg_run, start_service, policy):
    service = start_service(lambda prompt: "b2", environments=[BOARD])
    tg_run(
        "train",
        BOARD,
        "--steps",
        1,
        "--set",
        "sampling.temperature=0.8",
        "--set",
        "sampling.max_turn_tokens=9",
    )
    shown = tg_run("eval", BOARD, "--policy", policy, "--tasks", 2).output
    length = 9 if policy == "job-1" else 64
    assert f"temperature 0, at most {length} tokens per turn" in shown
    by_command = [(r.temperature, r.max_tokens) for batch in service.sampled for r in batch]
    service.sampled.clear()
    with tg.Client() as client:
        played = client.job(policy).policy() if policy == "job-1" else client.policy(policy)
        played.evaluate(BOARD, episodes=2)
    in_python = [(r.temperature, r.max_tokens) for batch in service.sampled for r in batch]
    assert set(by_command) == set(in_python) == {(0.0, length)}


@pytest.mark.parametrize("policy", ["job-1", "nano"])
def test_sets_the_length_of_answers(tg_run, start_service, policy):
    service = start_service(lambda prompt: "b2", environments=[BOARD])
    tg_run("train", BOARD, "--steps", 1)
    found = figures(
        tg_run("eval", BOARD, "--policy", policy, "--tasks", 1, "--max-turn-tokens", 17, "--json")
    )
    assert found["settings"]["max_turn_tokens"] == 17
    assert {r.max_tokens for batch in service.sampled for r in batch} == {17}


@pytest.mark.parametrize("idle", [["-n", "2"], ["--top-p", "0.9"], ["--top-k", "3"]])
def test_rejects_at_temperature_0_what_needs_drawn_answers(tg_run, start_service, idle):
    start_service(lambda prompt: "b2", environments=[BOARD])
    refused = tg_run("eval", BOARD, "--policy", "nano", *idle)
    assert (refused.exit_code, "--temperature 1" in refused.output) == (2, True)
    assert tg_run("eval", BOARD, "--policy", "nano", "--temperature", 1, *idle).exit_code == 0


def test_keeps_what_was_played_on_ctrl_c_and_says_how(tmp_path):
    (tmp_path / "slowly.py").write_text(
        "import time\n"
        "import tinkergym as tg\n"
        "class Env(tg.SingleTurnEnv):\n"
        "    def ask(self, options): return 'Go?'\n"
        "    def score(self, answer):\n"
        "        time.sleep(0.05)\n"
        "        return 1.0\n"
    )
    command = [sys.executable, "-m", "tinkergym.cli.main", "eval", "slowly:Env", "--tasks", "100000"]
    file = tmp_path / "run.jsonl"
    process = subprocess.Popen(
        [*command, "--out", str(file)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    while process.poll() is None and (not file.exists() or len(file.read_bytes().splitlines()) < 4):
        threading.Event().wait(0.01)  # The process needs the core.
    process.send_signal(signal.SIGINT)
    said = process.communicate()[0]
    assert process.returncode == 130
    assert "the same command" in said
    assert "Traceback" not in said
    assert len(read_records(file).episodes) >= 3


def test_shows_failed_episodes_but_in_no_figure(tg_run, tmp_path, monkeypatch):
    (tmp_path / "fails.py").write_text(
        "import tinkergym as tg\n"
        "class Env(tg.SingleTurnEnv):\n"
        "    def ask(self, options): return '?'\n"
        "    def score(self, answer):\n"
        "        if self.np_random_seed % 2: raise RuntimeError('out of order')\n"
        "        return 1.0\n"
    )
    monkeypatch.chdir(tmp_path)
    result = tg_run("eval", "fails:Env", "--tasks", 6)
    assert "mean return  1.000" in result.output
    assert "pass@1       1.000 [0.439, 1.000] over 3 of 6 tasks" in result.output
    assert "3 failed and are excluded" in result.output
    assert "out of order" in result.output
