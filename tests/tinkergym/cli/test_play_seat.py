import json
import re

import pytest

GAME = "games/Nim-v0"


def test_plays_seat_by_a_person_against_a_script(tg_run):
    run = tg_run("play", GAME, "--seat", "player_1", "--policy", "perfect", typed="1\n" * 20)
    assert run.exit_code == 0
    assert "your return -1" in run.output


def test_tells_program_at_a_seat_what_everybody_earned(tg_run):
    run = tg_run("play", GAME, "--seat", "player_0", "--json", "--episodes", 2, typed="1\n" * 40)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert [line["event"] for line in lines if line["event"] != "your_move"] == ["reset", "end"] * 2
    assert all(sum(line["returns"].values()) == 0 for line in lines if line["event"] == "end")
    assert all("Stones" in line["observation"] for line in lines if line["event"] == "your_move")


def test_leaves_game_when_the_input_closes(tg_run):
    run = tg_run("play", GAME, "--seat", "player_0", typed="")
    assert run.exit_code == 0
    assert "left the game" in run.output


def test_hides_a_move_until_the_round_is_over(tg_run):
    run = tg_run("play", "games/RockPaperScissors-v0", "--seat", "player_1", typed="rock\n" * 3)
    before = run.output.split("> ")[0]
    assert not re.search("^(rock|paper|scissors)$", before, re.MULTILINE)


DICE = "tabletop/LiarsDice-v0"


def test_seats_user_and_named_players_in_game_of_three(tg_run):
    run = tg_run(
        *(
            "play",
            DICE,
            "--seat",
            "player_1",
            "--player",
            "player_2=cautious",
            "--policy",
            "random",
            "--json",
        ),
        typed="liar\n" * 40,
    )
    assert run.exit_code == 0
    reset, *_, end = [json.loads(line) for line in run.stdout.splitlines()]
    assert reset["players"] == {"player_2": "cautious", "player_0": "random"}
    assert reset["seat"] == "player_1"
    assert set(end["returns"]) == {"player_0", "player_1", "player_2"}


def test_shares_terminal_between_two_people(tg_run):
    seats = ("--seat", "player_0", "--seat", "player_1")
    run = tg_run("play", GAME, *seats, "--json", typed="1\n" * 40)
    lines = [json.loads(line) for line in run.stdout.splitlines()]
    assert lines[0]["players"] == {}
    moves = [line["seat"] for line in lines if line["event"] == "your_move"]
    assert moves == [f"player_{number % 2}" for number in range(len(moves))]
    assert set(lines[-1]["observations"]) == {"player_0", "player_1"}


@pytest.mark.parametrize("as_json", [True, False])
def test_shows_every_move_to_who_takes_no_seat(tg_run, as_json):
    run = tg_run("play", DICE, "--watch", "--policy", "random", *(["--json"] if as_json else []))
    assert run.exit_code == 0
    if as_json:
        events = [json.loads(line) for line in run.stdout.splitlines()]
        assert events[0]["players"] == dict.fromkeys(("player_0", "player_1", "player_2"), "random")
        assert {event["event"] for event in events[1:-1]} == {"action"}
        assert {event["seat"] for event in events[1:-1]} <= set(events[0]["players"])
    else:
        assert "returns: player_0" in run.output


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--seat", "purple"], "--seat"),
        ([], "--seat"),
        (["--seat", "player_0", "--watch"], "--watch"),
        (["--seat", "player_0", "--temperature", "1"], "--temperature"),
        (["--seat", "player_0", "--player", "player_1"], "--player"),
        (["--seat", "player_0", "--player", "player_0=random"], "--player"),
        (["--seat", "player_0", "--player", "player_7=random"], "--player"),
        (["--player", "player_1=random"], "--seat"),
        (["--seat", "player_0", "--player", "player_1=random", "--policy", "random"], "--policy"),
    ],
)
def test_rejects_by_name_what_makes_no_sense_at_a_seat(tg_run, arguments, field):
    run = tg_run("play", GAME, *arguments)
    assert run.exit_code == 2
    assert field in run.output
