import json
from pathlib import Path

import pytest

import backend

BOARD = "board/TicTacToeVs-v0"


def test_seats_a_person_where_the_policy_sits(run):
    result = run("play", BOARD, "--seed", "1", typed="zz\n")
    assert "You are " in result.output
    assert "Illegal move" in result.output
    assert "return -1 (the task ended)" in result.output


def test_suggests_close_matches_for_unregistered_environment(run):
    result = run("play", "board/TicTacToVs-v0")
    assert result.exit_code == 2
    assert f"did you mean {BOARD}" in result.output


def test_shows_how_a_policy_plays(run, service):
    run("train", BOARD, "--steps", "1")
    result = run("play", BOARD, "--policy", "job-1", "--watch", "--episodes", "2")
    assert result.exit_code == 0
    assert "policy\nb2" in result.output
    assert "2 episodes, mean return" in result.output


@pytest.mark.parametrize("option", ["--watch", "--temperature=0", "--top-p=0.9", "--top-k=5"])
def test_rejects_policy_options_where_a_person_plays(run, option):
    result = run("play", BOARD, option)
    name = option.partition("=")[0]
    assert (result.exit_code, f"error: {name}: needs --policy" in result.output) == (2, True)


def test_draws_for_watched_policy_as_told(run, service):
    run("train", BOARD, "--steps", "1")
    service.sampled.clear()
    run("play", BOARD, "--policy", "job-1", "--watch", "--top-p", "0.9", "--top-k", "5")
    assert {(r.top_p, r.top_k) for batch in service.sampled for r in batch} == {(0.9, 5)}
    wrong = run("play", BOARD, "--policy", "job-1", "--watch", "--top-k", "-1")
    assert (wrong.exit_code, "--top-k" in wrong.output) == (2, True)


def test_plays_model_before_there_is_any_job(run, service):
    result = run("play", BOARD, "--policy", "nano", "--watch")
    assert result.exit_code == 0, result.output
    assert service.jobs.newest_first() == []


def test_rejects_policy_that_is_neither_a_job_nor_a_model(run, service):
    result = run("play", BOARD, "--policy", "nanno")
    assert (result.exit_code, "error: --policy: 'nanno'" in result.output) == (2, True)


@pytest.mark.parametrize("command", [["play"], ["eval", "--tasks", "1"]])
def test_calls_an_unplayable_version_an_unknown_name(run, service, command):
    run("train", BOARD, "--steps", "1")
    result = run(*command, BOARD, "--policy", "job-1@50")
    assert (result.exit_code, "error: --policy: version 50 of job-1" in result.output) == (2, True)


@pytest.mark.parametrize("name", ["nanno", "job-99", "job-99@4", "job-1/black", "policy-9", "job-1@x"])
def test_rejects_unknown_name_alike_in_all_commands(run, service, name):
    run("train", BOARD, "--steps", "1")
    said = []
    for command in (["play", BOARD], ["eval", BOARD, "--tasks", "1"]):
        result = run(*command, "--policy", name, "--json")
        error = json.loads(result.stdout.splitlines()[-1])["error"]
        said.append((result.exit_code, error["type"], error["field"], error["hint"]))
    assert said[0] == said[1]
    assert said[0][0] == 2


def test_shows_the_system_prompt_that_the_policy_reads(run, service):
    run("train", BOARD, "--steps", "1", "--set", "system_prompt=Play like a pirate.")
    assert "system\nPlay like a pirate." in run("play", BOARD, "--policy", "job-1", "--watch").output


def test_lets_person_play_against_policy_where_opponent_is_replaceable(run, service):
    run("train", BOARD, "--steps", "1")
    result = run("play", BOARD, "--policy", "job-1", typed="a1\na2\na3\n")
    # The policy always answers b2; its second b2 is illegal, so it loses at once.
    assert "your move" in result.output
    assert "return -1" in result.output


def test_leaves_game_without_error(run):
    result = run("play", BOARD, typed="")
    assert result.exit_code == 0
    assert "left the game" in result.output


def test_plays_untrained_model_and_says_which_versions_are_kept(run, service):
    run("train", BOARD, "--steps", "3")
    assert run("play", BOARD, "--policy", "job-1@0", "--watch").exit_code == 0
    assert {request.policy_version for batch in service.sampled for request in batch} == {0}
    result = run("play", BOARD, "--policy", "job-1@2", "--watch")
    assert (result.exit_code, "versions with a checkpoint: 3;" in result.output) == (2, True)
    assert run("play", BOARD, "--policy", "job-1@x").exit_code == 2


BOARD = "board/TicTacToeVs-v0"


NANO = Path(backend.__file__).parent / "models" / "nano"


def test_shows_a_person_the_models_own_text(tg_run):
    result = tg_run("play", BOARD, "--raw", NANO, "--env-set", "instructions=true", typed="zz\n")
    assert "prompt\n<|im_start|>system\n3 in a row wins." in result.output
    assert "<|im_end|>\n<|im_start|>assistant\n" in result.output


def test_shows_system_prompt_to_person_and_takes_several_lines(tg_run):
    result = tg_run("play", BOARD, "--env-set", "instructions=true", typed="z\\\nz\n")
    assert "system\n3 in a row wins." in result.output
    assert r"'z\nz' is no cell" in result.output
