import importlib
import sys

import numpy as np
import pytest

from tinkergym import make, make_game
from tinkergym.bridges.pettingzoo_classic import (
    ClassicConnectFour,
    ClassicLeducHoldem,
    ClassicRockPaperScissors,
    ClassicTicTacToe,
)
from tinkergym.errors import InvalidRequestError
from tinkergym.games.game_env import GameEnv

pytest.importorskip("pygame")
pytest.importorskip("rlcard")

GAMES = [ClassicTicTacToe, ClassicConnectFour, ClassicLeducHoldem]


@pytest.mark.parametrize("game", GAMES)
def test_legal_moves_turns_and_rewards_are_pettingzoos_own(game):
    ours = GameEnv(game())
    native = importlib.import_module(game.module).raw_env()
    for seed in range(20):
        rng = np.random.default_rng(seed)
        ours.reset(seed=seed)
        # The seed that our game draws for PettingZoo's.
        drawn = np.random.Generator(np.random.PCG64(seed)).integers(2**31)
        native.reset(seed=int(drawn))
        while True:
            player = native.possible_agents.index(native.agent_selection)
            agent = ours.agent_selection
            assert agent == f"player_{player}"
            mask = native.observe(native.agent_selection)["action_mask"]
            legal = np.flatnonzero(mask)
            assert ours.legal_actions(agent) == [game.moves[action] for action in legal]
            action = int(rng.choice(legal))
            native.step(action)
            ours.step(game.moves[action])
            assert list(ours.rewards.values()) == [float(r) for r in native.rewards.values()]
            assert list(ours.terminations.values()) == list(native.terminations.values())
            if all(native.terminations.values()):
                break


def test_a_round_of_rock_paper_scissors_pays_what_pettingzoos_does():
    ours, native = (
        GameEnv(ClassicRockPaperScissors(max_cycles=20)),
        importlib.import_module(ClassicRockPaperScissors.module).raw_env(max_cycles=20),
    )
    ours.reset(seed=0)
    native.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(20):
        for action in rng.integers(3, size=2).tolist():
            native.step(action)
            ours.step(ClassicRockPaperScissors.moves[action])
        assert list(ours.rewards.values()) == [float(r) for r in native.rewards.values()]
    assert all(ours.terminations.values())


def test_a_board_is_written_as_pettingzoo_draws_it():
    env = make_game("pettingzoo/TicTacToe-v0")
    env.reset(seed=0)
    assert env.observe("player_0") == {"text": "You are X.\n0 3 6\n1 4 7\n2 5 8"}
    for move in "014":
        env.step(move)
    assert env.observe("player_0")["text"] == env.observe("player_1")["text"] == "X 3 6\nO X 7\n2 5 8"


def test_a_stone_falls_to_the_lowest_free_place_of_its_column():
    env = make_game("pettingzoo/ConnectFour-v0")
    env.reset(seed=0)
    for move in "335":
        env.step(move)
    assert env.observe("player_1")["text"].splitlines()[0] == "0 1 2 3 4 5 6"
    assert env.observe("player_1")["text"].splitlines()[-2:] == [". . . O . . .", ". . . X . X ."]


def test_poker_shows_a_player_its_own_card_only():
    env = make_game("pettingzoo/LeducHoldem-v0")
    hands = set()
    for seed in range(30):
        env.reset(seed=seed)
        first, second = (env.observe(agent)["text"] for agent in env.possible_agents)
        hands.add((first.split()[2], second.split()[2]))
        assert "On the table: nothing yet." in first
        assert ("You can" in first) != ("You can" in second)
    assert len(hands) == 9


def test_they_are_environments_against_an_opponent():
    env = make("pettingzoo/ConnectFourVs-v0", seat="second")
    observation, _ = env.reset(seed=0)
    assert observation.startswith("You are O.")
    assert observation.count("X") == 1


def test_what_is_missing_is_named_with_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    monkeypatch.delitem(sys.modules, ClassicTicTacToe.module, raising=False)
    with pytest.raises(InvalidRequestError, match=r"pygame.*\.\[pettingzoo\]"):
        ClassicTicTacToe()
