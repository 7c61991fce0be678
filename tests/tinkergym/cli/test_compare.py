import json

import pytest

BOARD = "board/TicTacToeVs-v0"


@pytest.fixture
def files(tg_run, tmp_path):
    def play(policy, *extra, tasks=20):
        file = tmp_path / f"{policy}-{len(list(tmp_path.iterdir()))}.jsonl"
        result = tg_run("eval", BOARD, "--policy", policy, "--tasks", tasks, "-n", 2, "--out", file, *extra)
        assert result.exit_code == 0
        return file

    return play


def test_calls_a_better_policy_clearly_better(tg_run, files):
    result = tg_run("compare", files("legal"), files("gold"), "--json")
    found = json.loads(result.output)
    assert found["difference"] == pytest.approx(found["b"]["mean_return"] - found["a"]["mean_return"])
    assert 0 < found["interval_95"][0] < found["difference"] < found["interval_95"][1]
    assert found["p"] < 0.01
    assert found["tasks"] == 20


def test_does_not_call_the_same_policy_better(tg_run, files):
    result = tg_run("compare", files("legal"), files("legal"))
    assert "no clear difference" in result.output
    assert "p = 1.0000" in result.output


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (["--env-set", "opponent=heuristic"], "has board/TicTacToeVs-v0"),
        (["--seed", "1000"], "0 completed tasks in common"),
        (["--seed", "5"], "lacks 5 of the tasks in "),
    ],
)
def test_rejects_what_is_no_pair(tg_run, files, extra, message):
    result = tg_run("compare", files("legal"), files("legal", *extra))
    assert (result.exit_code, message in result.output) == (2, True), result.output


def test_names_incomplete_file_with_what_it_lacks(tg_run, files):
    whole, part = files("legal"), files("legal")
    kept = part.read_text().splitlines(keepends=True)[: 1 + 12]  # of the settings, and of 12 tasks
    kept[1] = kept[1].replace('"stop_reason":"terminated"', '"stop_reason":"environment_error"')
    part.write_text("".join(kept))
    result = tg_run("compare", whole, part)
    said = f"{part} lacks 8 of the tasks in {whole} and has only failed episodes of 1 that {whole} "
    assert (result.exit_code, said in result.output) == (2, True), result.output
    assert (
        "11 tasks, paired; 9 ignored, because only one side completed them"
        in tg_run("compare", whole, part, "--common").output
    )


def test_compares_the_common_tasks_on_request(tg_run, files):
    result = tg_run("compare", files("legal"), files("gold", "--seed", 5), "--common")
    assert result.exit_code == 0
    assert "15 tasks, paired; 10 ignored" in result.output


def test_rejects_what_is_no_file_of_episodes(tg_run, files, tmp_path):
    nonsense = tmp_path / "nonsense.jsonl"
    nonsense.write_text('{"a": 1}\n')
    result = tg_run("compare", files("legal"), nonsense)
    assert (result.exit_code, "line 1 of" in result.output) == (2, True)
    assert tg_run("compare", nonsense, tmp_path / "missing.jsonl").exit_code == 2


def test_says_that_equal_unbounded_returns_tell_nothing(tg_run, tmp_path, monkeypatch):
    (tmp_path / "seven.py").write_text(
        "import tinkergym as tg\n"
        "class Env(tg.SingleTurnEnv):\n"
        "    def ask(self, options): return '?'\n"
        "    def score(self, answer): return 7.0\n"
    )
    monkeypatch.chdir(tmp_path)
    shown = tg_run("eval", "seven:Env", "--tasks", 4, "--out", "a.jsonl")
    assert "mean return  7.000 [unknown]" in shown.output
    tg_run("eval", "seven:Env", "--tasks", 4, "--out", "b.jsonl")
    found = json.loads(tg_run("compare", "a.jsonl", "b.jsonl", "--json").output)
    assert (found["difference"], found["interval_95"], found["p"]) == (0.0, [None, None], None)
    assert "[unknown]" in tg_run("compare", "a.jsonl", "b.jsonl").output
