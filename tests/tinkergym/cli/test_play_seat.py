import json
import re

import pytest

GAME = "games/Nim-v0"


def test_a_person_plays_a_seat_against_a_script(tg_run):
    run = tg_run("play", GAME, "--seat", "player_1", "--policy", "perfect", typed="1\n" * 20)
    assert run.exit_code == 0
    assert "your return -1" in run.output


def test_a_program_plays_a_seat_and_learns_what_everybody_earned(tg_run):
    run = tg_run("play", GAME, "--seat", "player_0", "--json", "--episodes", 2, typed="1\n" * 40)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert [line["event"] for line in lines if line["event"] != "your_move"] == ["reset", "end"] * 2
    assert all(sum(line["returns"].values()) == 0 for line in lines if line["event"] == "end")
    assert all("Stones" in line["observation"] for line in lines if line["event"] == "your_move")


def test_who_closes_the_input_leaves_the_game(tg_run):
    run = tg_run("play", GAME, "--seat", "player_0", typed="")
    assert run.exit_code == 0
    assert "left the game" in run.output


def test_a_hidden_move_is_not_shown_before_the_round_is_over(tg_run):
    run = tg_run("play", "games/RockPaperScissors-v0", "--seat", "player_1", typed="rock\n" * 3)
    before = run.output.split("> ")[0]
    assert not re.search("^(rock|paper|scissors)$", before, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--seat", "purple"], "--seat"),
        ([], "--seat"),
        (["--seat", "player_0", "--watch"], "--watch"),
        (["--seat", "player_0", "--temperature", "1"], "--temperature"),
    ],
)
def test_what_makes_no_sense_at_a_seat_is_refused_by_name(tg_run, arguments, field):
    run = tg_run("play", GAME, *arguments)
    assert run.exit_code == 2
    assert field in run.output
