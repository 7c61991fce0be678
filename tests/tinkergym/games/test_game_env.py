import re
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test
from pettingzoo.utils.conversions import aec_to_parallel, parallel_to_aec

from tests.tinkergym.games.small_games import Evens, Nim, Three
from tinkergym import TextGame
from tinkergym.errors import (
    EpisodeProtocolError,
    InvalidEnvironmentError,
    InvalidRequestError,
)
from tinkergym.games.game_env import GameEnv
from tinkergym.wrappers import AgainstOpponent

GAMES = [Nim, Evens, Three]


ARRAYS_ONLY = re.compile(
    "Observation is not a NumPy array|space for each agent probably should be|recommend agents to be named"
)
"""What `api_test` advises whenever a space is neither `Box` nor `Discrete`; a text is neither.
And that agents be called `player_0`.
"""


def run(test, *args, **kwargs):
    """Run one of PettingZoo's tests; each warning but those for arrays is an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        test(*args, **kwargs)
    assert not [str(w.message) for w in caught if not ARRAYS_ONLY.search(str(w.message))]


@pytest.mark.parametrize(
    ("game", "policy"),
    # The moves of Three cannot be listed.
    [
        (game, policy)
        for game in GAMES
        for policy in ("lose", "random", "retry:2")
        if (game, policy) != (Three, "random")
    ],
)
def test_passes_pettingzoos_check(game, policy):
    run(api_test, GameEnv(game(), on_illegal=policy), num_cycles=50)
    run(seed_test, lambda: GameEnv(game(), on_illegal=policy), num_cycles=20)


def test_names_agents_of_a_game():
    class Named(Nim):
        agents = ("first", "second")

    env = GameEnv(Named())
    run(api_test, env, num_cycles=50)
    env.reset(seed=1)
    assert env.possible_agents == ["first", "second"]
    assert (env.agent_selection, env.game.player_names) == ("first", ["player_0", "player_1"])


@pytest.mark.parametrize("agents", [("one",), ("same", "same"), ("a", "b", "c"), ("a", "")])
def test_requires_one_agent_for_each_player(agents):
    game = Nim()
    game.agents = agents
    with pytest.raises(InvalidEnvironmentError) as caught:
        GameEnv(game)
    assert caught.value.field == "environment"


def test_converts_simultaneous_game_to_parallel_environment_and_back():
    run(parallel_api_test, aec_to_parallel(GameEnv(Evens())), num_cycles=20)
    run(parallel_seed_test, lambda: aec_to_parallel(GameEnv(Evens(), on_illegal="random")), num_cycles=20)
    run(api_test, parallel_to_aec(aec_to_parallel(GameEnv(Evens()))), num_cycles=20)


@pytest.mark.parametrize("env", [GameEnv(Nim()), GameEnv(Evens(), on_illegal="retry:1")])
def test_does_not_call_turn_taking_play_parallel(env):
    assert not env.metadata["is_parallelizable"]


def test_hides_moves_of_a_round_until_all_are_made():
    env = GameEnv(Evens())
    env.reset(seed=0)
    before = env.observe("player_1")
    env.step("1")
    assert env.agent_selection == "player_1"
    assert env.observe("player_1") == before == {"text": "You are Odd."}
    env.step("0")
    assert env.observe("player_0") == env.observe("player_1") == {"text": "It was 1 and 0."}
    assert env.rewards == {"player_0": -1.0, "player_1": 1.0}


def test_judges_and_measures_the_whole_game():
    env = GameEnv(Evens())
    env.reset(seed=0)
    for move in ("1", "0", "1", "1"):
        env.step(move)
    assert env.rewards == {"player_0": 1.0, "player_1": -1.0}
    assert env.infos["player_0"]["metrics"]["drawn"] == 1.0
    assert env.observe("player_1")["text"].endswith("Draw.")


def test_shows_agent_what_is_new_since_its_last_action():
    env = GameEnv(Three())
    env.reset(seed=0)
    assert env.observe("player_0") == {"text": "Say something."}
    env.step("ah")
    env.step("oh")
    assert env.observe("player_2") == env.observe("player_2")
    assert env.observe("player_2") == {"text": "player 0 said ah.\nplayer 1 said oh.\nSay something."}
    assert env.observe("player_0") == {"text": "player 1 said oh.\nSay something."}


def test_pays_each_of_three_and_ends_for_all():
    env = GameEnv(Three())
    env.reset(seed=0)
    for word in "abc":
        env.step(word)
    assert env.rewards == {"player_0": 0.0, "player_1": 0.5, "player_2": 2.0}
    assert env.terminations == dict.fromkeys(env.possible_agents, True)
    assert env.infos["player_2"] == {"metrics": {"won": 1.0, "drawn": 0.0, "lost": 0.0, "illegal_move": 0.0}}
    for _ in range(3):
        env.step(None)
    assert env.agents == []
    with pytest.raises(EpisodeProtocolError):
        env.step("d")


def test_rejects_action_that_is_no_text():
    env = GameEnv(Nim())
    env.reset(seed=0)
    with pytest.raises(InvalidRequestError) as caught:
        env.step(1)
    assert caught.value.field == "action"


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=50), st.sampled_from(["lose", "random", "retry:1"]), st.integers(0, 5))
def test_breaks_no_game_by_any_text(text, policy, seed):
    for game in (Nim, Evens):
        env = GameEnv(game(), on_illegal=policy)
        env.reset(seed=seed)
        for _ in range(60):
            if not env.agents:
                break
            env.step(None if env.terminations[env.agent_selection] else text)
            assert sum(env.rewards.values()) == 0.0
            for agent in env.agents:
                assert env.observe(agent) in env.observation_space(agent)


@pytest.mark.parametrize(
    "outcome", [np.float32(1.0), np.int64(1), np.array(1.0), True, np.array([1.0, -1.0])]
)
def test_takes_numbers_of_numpys_as_rewards(outcome):
    class Game(Nim):
        def play(self, player, move):
            self.give(player, np.float32(0.5))
            return outcome

    env = GameEnv(Game())
    env.reset(seed=0)
    env.step("1")
    assert env.rewards == {"player_0": 1.5, "player_1": -1.0}
    assert {type(reward) for reward in env.rewards.values()} == {float}


class Bombs(TextGame):
    """Each says how much it takes; 5 and more is out, and pays the others. Counts by itself what it pays."""

    def __init__(self, players=4, rounds=3, simultaneous=False):
        self.players, self.rounds, self.simultaneous = players, rounds, simultaneous

    def begin(self, rng):
        self.account, self.moves = [0.0] * self.players, 0

    def legal(self, player):
        return [str(number) for number in range(8)]

    def pay(self, player, amount):
        self.account[player] += amount
        self.give(player, amount)

    def take(self, player, amount):
        self.pay(player, amount)
        if amount >= 5:
            for other in range(self.players):
                if other != player and other not in self.eliminated:
                    self.pay(other, 1.0)
            self.account[player] -= 2.0
            self.eliminate(player, -2.0)

    def play(self, player, move):
        self.take(player, int(move))
        return self.over()

    def play_round(self, moves):
        for player, move in enumerate(moves):
            if move is not None:
                self.take(player, int(move))
        return self.over()

    def over(self):
        self.moves += 1
        if self.moves < self.rounds * (1 if self.simultaneous else self.players):
            return None
        self.truncate()
        final = [0.0 if player in self.eliminated else 0.25 for player in range(self.players)]
        self.account = [a + b for a, b in zip(self.account, final, strict=True)]
        return final


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 7), min_size=30, max_size=30), st.integers(2, 4), st.booleans())
def test_pays_each_seat_what_the_game_has_paid_it(moves, players, simultaneous):
    game = Bombs(players, simultaneous=simultaneous)
    env = GameEnv(game)
    env.reset(seed=0)
    said, earned, ended = iter(moves), dict.fromkeys(env.possible_agents, 0.0), {}
    for agent in env.agent_iter():
        _, reward, terminated, truncated, info = env.last()
        earned[agent] += reward
        if terminated or truncated:
            assert agent not in ended
            ended[agent] = (terminated, truncated)
            assert "won" in info["metrics"]
        env.step(None if terminated or truncated else str(next(said)))
    assert list(earned.values()) == game.account
    out = {env.possible_agents[player] for player in game.eliminated}
    assert ended == {agent: (agent in out, agent not in out) for agent in env.possible_agents}


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 7), min_size=30, max_size=30), st.sampled_from(["first", "second"]))
def test_pays_one_side_what_its_seat_earned(moves, seat):
    said = iter(moves)
    game = Bombs(3)

    class Other:
        def act(self, observation):
            return str(next(said) % 5)

    env = AgainstOpponent(GameEnv(game), opponent=Other(), seat=seat)
    env.reset(seed=0)
    total, over = 0.0, False
    while not over:
        _, reward, terminated, truncated, _ = env.step(str(next(said)))
        total, over = total + reward, terminated or truncated
    player = 0 if seat == "first" else 1
    assert total == game.account[player]
    assert terminated is (player in game.eliminated)


@pytest.mark.parametrize("simultaneous", [False, True])
def test_passes_pettingzoos_check_with_players_who_leave(simultaneous):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        api_test(GameEnv(Bombs(simultaneous=simultaneous)), num_cycles=40)


class Tax(TextGame):
    """Each move pays the other player."""

    def begin(self, rng):
        self.moves = 0

    def legal(self, player):
        return ["x"]

    def play(self, player, move):
        self.moves += 1
        self.give(1 - player, 1.0)
        return [0.0, 0.0] if self.moves == 4 else None


@pytest.mark.parametrize("seat", ["first", "second"])
def test_pays_earnings_before_first_own_move_with_that_move(seat):
    env = AgainstOpponent(GameEnv(Tax()), seat=seat)
    for _ in range(2):
        env.reset(seed=0)
        total, over = 0.0, False
        while not over:
            _, reward, over, _, _ = env.step("x")
            total += reward
        assert total == 2.0
