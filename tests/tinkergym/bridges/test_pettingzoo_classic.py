import importlib
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo import AECEnv

from tinkergym import make, make_game
from tinkergym.bridges.pettingzoo_classic import (
    ClassicConnectFour,
    ClassicGame,
    ClassicLeducHoldem,
    ClassicRockPaperScissors,
    ClassicTicTacToe,
)
from tinkergym.errors import InvalidRequestError
from tinkergym.games.game_env import GameEnv

pytest.importorskip("pygame")
needs_rlcard = pytest.mark.skipif(find_spec("rlcard") is None, reason="rlcard is not installed")

GAMES = [ClassicTicTacToe, ClassicConnectFour, pytest.param(ClassicLeducHoldem, marks=needs_rlcard)]


@pytest.mark.parametrize("game", GAMES)
def test_matches_legal_moves_turns_and_rewards_of_pettingzoo(game):
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


def test_pays_rock_paper_scissors_as_pettingzoo_does():
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
    # PettingZoo stops after so many rounds: a limit, not the end of a game.
    assert all(ours.truncations.values())
    assert not any(ours.terminations.values())


class Market(AECEnv):
    """Pays at every move, puts agents out one by one, and is stopped after a number of moves."""

    metadata = {"name": "market", "render_modes": []}  # noqa: RUF012

    def __init__(self, count=3, limit=12):
        super().__init__()
        self.possible_agents, self.limit = [f"trader_{i}" for i in range(count)], limit

    def observation_space(self, agent):
        return spaces.Box(0, 1, (1,), np.int8)

    def action_space(self, agent):
        return spaces.Discrete(4)

    def reset(self, seed=None, options=None):
        self.agents = self.possible_agents[:]
        self.rewards, self._cumulative_rewards = (dict.fromkeys(self.agents, 0.0) for _ in range(2))
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.infos = {agent: {} for agent in self.agents}
        self.agent_selection, self.moves = self.agents[0], 0

    def observe(self, agent):
        return np.zeros(1, np.int8)

    def step(self, action):
        agent = self.agent_selection
        if self.terminations[agent] or self.truncations[agent]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[agent] = 0.0
        self._clear_rewards()
        self.moves += 1
        self.rewards[agent] = float(action)
        for other in self.agents:
            self.rewards[other] -= 0.5
        index = self.agents.index(agent)
        self.agent_selection = self.agents[(index + 1) % len(self.agents)]
        if action == 3:
            self.terminations[agent] = True
        if self.moves == self.limit:
            self.truncations = dict.fromkeys(self.agents, True)
        self._accumulate_rewards()
        self._deads_step_first()


raw_env = Market  # as a module of PettingZoo's


class ClassicMarket(ClassicGame):
    module = __name__
    moves = tuple("0123")

    def __init__(self, count=3, limit=12):
        super().__init__(count=count, limit=limit)
        self.players = count

    def words(self, observation, player):
        return "Trade."


def account(env, choose):
    """Play with `agent_iter`; return what `last` paid each agent, and how its game ended."""
    earned, ended = dict.fromkeys(range(len(env.possible_agents)), 0.0), {}
    for agent in env.agent_iter():
        _, reward, terminated, truncated, _ = env.last()
        player = env.possible_agents.index(agent)
        earned[player] += reward
        if terminated or truncated:
            # Of an agent that leaves with the last move that the limit allows PettingZoo says both.
            ended[player] = (terminated, truncated and not terminated)
        env.step(None if terminated or truncated else choose(player))
    return earned, ended


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=12, max_size=12), st.integers(2, 4), st.integers(1, 12))
def test_pays_and_ends_each_seat_as_pettingzoos_own_game(actions, count, limit):
    native, ours = Market(count, limit), GameEnv(ClassicMarket(count, limit))
    native.reset()
    ours.reset(seed=0)
    left, right = iter(actions), iter(actions)
    assert account(ours, lambda _: str(next(left))) == account(native, lambda _: next(right))


def test_writes_board_as_pettingzoo_draws_it():
    env = make_game("pettingzoo/TicTacToe-v0")
    env.reset(seed=0)
    assert env.observe("player_0") == {"text": "You are X.\n0 3 6\n1 4 7\n2 5 8"}
    for move in "014":
        env.step(move)
    assert env.observe("player_0")["text"] == env.observe("player_1")["text"] == "X 3 6\nO X 7\n2 5 8"


def test_drops_stone_to_the_lowest_free_place_of_its_column():
    env = make_game("pettingzoo/ConnectFour-v0")
    env.reset(seed=0)
    for move in "335":
        env.step(move)
    assert env.observe("player_1")["text"].splitlines()[0] == "0 1 2 3 4 5 6"
    assert env.observe("player_1")["text"].splitlines()[-2:] == [". . . O . . .", ". . . X . X ."]


@needs_rlcard
def test_shows_a_poker_player_its_own_card_only():
    env = make_game("pettingzoo/LeducHoldem-v0")
    hands = set()
    for seed in range(30):
        env.reset(seed=seed)
        first, second = (env.observe(agent)["text"] for agent in env.possible_agents)
        hands.add((first.split()[2], second.split()[2]))
        assert "On the table: nothing yet." in first
        assert ("You can" in first) != ("You can" in second)
    assert len(hands) == 9


def test_makes_environments_against_an_opponent():
    env = make("pettingzoo/ConnectFourVs-v0", seat="second")
    observation, _ = env.reset(seed=0)
    assert observation.startswith("You are O.")
    assert observation.count("X") == 1


def test_names_what_is_missing_with_the_extra_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    monkeypatch.delitem(sys.modules, ClassicTicTacToe.module, raising=False)
    with pytest.raises(InvalidRequestError) as caught:
        ClassicTicTacToe()
    assert caught.value.field == "environment"
