import json

from tinkergym.evaluation.records import read_records

BOARD = "board/TicTacToeVs-v0"


def figures(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def test_starts_samples_of_a_task_equal_with_different_answers(tg_run, tmp_path):
    file = tmp_path / "run.jsonl"
    tg_run("eval", BOARD, "--policy", "legal", "--tasks", 3, "-n", 8, "--out", file)
    by_seed = {}
    for record in read_records(file).episodes:
        by_seed.setdefault(record.seed, []).append(record.trajectory)
    for trajectories in by_seed.values():
        assert len({t.turns[0].observation for t in trajectories}) == 1
        assert len({str(t.transcript) for t in trajectories}) > 1


def test_continues_run_where_it_stopped(tg_run, tmp_path):
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    command = ["eval", BOARD, "--policy", "legal", "--tasks", 6, "-n", 2]
    tg_run(*command, "--out", whole)
    lines = whole.read_bytes().splitlines(keepends=True)
    part.write_bytes(b"".join(lines[:6]) + lines[6][:40])  # as a killed process leaves it
    assert figures(tg_run(*command, "--out", part, "--json")) == figures(
        tg_run(*command, "--out", whole, "--json")
    )
    assert part.read_bytes() == whole.read_bytes()


def test_makes_run_longer(tg_run, tmp_path):
    file = tmp_path / "run.jsonl"
    tg_run("eval", BOARD, "--tasks", 4, "--out", file)
    result = figures(tg_run("eval", BOARD, "--tasks", 6, "-n", 2, "--out", file, "--json"))
    assert (result["episodes"], result["tasks"]) == (12, 6)
    assert len(read_records(file).episodes) == 12
