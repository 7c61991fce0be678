import re

import pytest

from tests.tinkergym.games.small_games import Evens, Nim, Three
from tinkergym.errors import InvalidRequestError
from tinkergym.games.game_env import GameEnv


def test_loses_by_illegal_move_and_says_why():
    env = GameEnv(Nim())
    env.reset(seed=0)
    env.step("2")
    env.step("four")
    assert env.rewards == {"player_0": 1.0, "player_1": -1.0}
    assert "Illegal move: 'four' is not one of 1, 2, 3. You lose." in env.observe("player_1")["text"]
    assert "Illegal move by player_1. You win." in env.observe("player_0")["text"]
    assert env.infos["player_1"]["metrics"]["illegal_move"] == 1.0
    assert env.infos["player_0"]["metrics"]["illegal_move"] == 0.0


def test_retries_an_illegal_move_so_often_and_then_loses():
    env = GameEnv(Nim(), on_illegal="retry:2")
    env.reset(seed=0)
    first = env.observe("player_0")
    env.step("x")
    assert env.agent_selection == "player_0"
    # Not the stones again: nothing has changed since they were shown.
    assert env.observe("player_0") == {"text": "Illegal move: 'x' is not one of 1, 2, 3. Try again."}
    assert env.infos["player_0"] == {"metrics": {"illegal_moves": 1.0}}
    env.step("y")
    assert env.observe("player_0")["text"].endswith("Try again, for the last time.")
    env.step("1")
    assert env.infos["player_0"] == {"metrics": {"illegal_moves": 0.0}}
    assert env.agent_selection == "player_1"
    assert env.observe("player_1")["text"].split()[0] == str(int(first["text"].split()[0]) - 1)
    for _ in range(3):
        assert not any(env.terminations.values())
        env.step("z")
    assert env.rewards == {"player_0": 1.0, "player_1": -1.0}
    assert env.infos["player_1"]["metrics"]["illegal_moves"] == 1.0


def test_counts_tries_anew_in_each_turn():
    env = GameEnv(Nim(), on_illegal="retry:1")
    env.reset(seed=0)
    for _ in range(4):
        env.step("x")
        env.step("1")
    assert not any(env.terminations.values())


def test_replaces_illegal_by_random_move_and_tells_its_mover_only():
    env = GameEnv(Nim(), on_illegal="random")
    env.reset(seed=0)
    before = env.game.left
    env.step("x")
    assert 1 <= before - env.game.left <= 3
    assert "Illegal" not in env.observe("player_1")["text"]
    env.step("1")
    told = env.observe("player_0")["text"].splitlines()[0]
    assert re.fullmatch(r"Illegal move: 'x' is not one of 1, 2, 3\. [123] was played instead\.", told)


@pytest.mark.parametrize(
    ("moves", "rewards"), [(("x", "1"), (-1.0, 1.0)), (("1", "x"), (1.0, -1.0)), (("x", "x"), (0.0, 0.0))]
)
def test_loses_round_by_illegal_move_once_all_have_moved(moves, rewards):
    env = GameEnv(Evens())
    env.reset(seed=0)
    for move in moves:
        assert not any(env.terminations.values())
        env.step(move)
    assert tuple(env.rewards.values()) == rewards
    assert all(env.terminations.values())


@pytest.mark.parametrize("setting", ["", "forgive", "retry", "retry:0", "retry:-1", "retry:9999", None, 3])
def test_rejects_invalid_rule_for_illegal_moves(setting):
    game = Nim()
    game.on_illegal = setting
    with pytest.raises(InvalidRequestError) as refused:
        GameEnv(game)
    assert refused.value.field == "on_illegal"


def test_rejects_random_moves_where_legal_ones_are_unknown():
    with pytest.raises(InvalidRequestError) as caught:
        GameEnv(Three(), on_illegal="random")
    assert caught.value.field == "on_illegal"


def test_records_the_rule_in_metadata():
    assert GameEnv(Nim()).metadata["on_illegal"] == "lose"
    assert GameEnv(Nim(), on_illegal="retry:3").metadata["on_illegal"] == "retry:3"
