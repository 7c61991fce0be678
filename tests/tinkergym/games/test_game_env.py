import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test
from pettingzoo.utils.conversions import aec_to_parallel, parallel_to_aec

from tinkergym import IllegalMoveError, TextGame
from tinkergym.errors import (
    EpisodeProtocolError,
    InvalidEnvironmentError,
    InvalidRequestError,
    InvalidRewardError,
)
from tinkergym.games.game_env import GameEnv


class Nim(TextGame):
    def begin(self, rng):
        self.left = int(rng.integers(8, 16))

    def observe(self, player):
        return f"{self.left} stones. Take 1, 2 or 3; who takes the last one wins."

    def legal(self, player):
        return ["1", "2", "3"][: self.left]

    def play(self, player, move):
        self.left -= int(move)
        return 1.0 if self.left == 0 else None


class Evens(TextGame):
    """Both say 0 or 1; who is player 0 wants equal numbers. Two rounds, a point for each."""

    players = ("Even", "Odd")
    simultaneous = True

    def begin(self, rng):
        self.rounds = 0

    def legal(self, player):
        return ["0", "1"]

    def play_round(self, moves):
        self.rounds += 1
        self.tell(f"It was {moves[0]} and {moves[1]}.")
        gain = 1.0 if moves[0] == moves[1] else -1.0
        if self.rounds == 2:
            return [gain, -gain]
        self.give(0, gain)
        self.give(1, -gain)
        return None


class Three(TextGame):
    """Three in turn say a word; the third ends it."""

    players = 3
    opponents = ()
    closed = False

    def begin(self, rng):
        self.said = []

    def observe(self, player):
        return "Say something."

    def read(self, player, action):
        if not action:
            raise IllegalMoveError("silence says nothing")
        return action

    def play(self, player, move):
        self.said.append(move)
        for other in range(3):
            if other != player:
                self.tell(f"player {player} said {move}.", other)
        return (0.0, 0.5, 2.0) if len(self.said) == 3 else None


GAMES = [Nim, Evens, Three]
ARRAYS_ONLY = re.compile("Observation is not a NumPy array|space for each agent probably should be")
"""What `api_test` advises whenever a space is neither `Box` nor `Discrete`; a text is neither."""


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
def test_pettingzoo_finds_nothing_wrong(game, policy):
    run(api_test, GameEnv(game(), on_illegal=policy), num_cycles=50)
    run(seed_test, lambda: GameEnv(game(), on_illegal=policy), num_cycles=20)


def test_a_simultaneous_game_is_a_parallel_environment_too_and_back():
    run(parallel_api_test, aec_to_parallel(GameEnv(Evens())), num_cycles=20)
    run(parallel_seed_test, lambda: aec_to_parallel(GameEnv(Evens(), on_illegal="random")), num_cycles=20)
    run(api_test, parallel_to_aec(aec_to_parallel(GameEnv(Evens()))), num_cycles=20)


@pytest.mark.parametrize("env", [GameEnv(Nim()), GameEnv(Evens(), on_illegal="retry:1")])
def test_what_is_played_in_turns_is_not_called_parallel(env):
    assert not env.metadata["is_parallelizable"]


def test_moves_of_a_round_are_unseen_until_all_are_made():
    env = GameEnv(Evens())
    env.reset(seed=0)
    before = env.observe("player_1")
    env.step("1")
    assert env.agent_selection == "player_1"
    assert env.observe("player_1") == before == {"text": "You are Odd."}
    env.step("0")
    assert env.observe("player_0") == env.observe("player_1") == {"text": "It was 1 and 0."}
    assert env.rewards == {"player_0": -1.0, "player_1": 1.0}


def test_the_verdict_and_the_metrics_are_about_the_whole_game():
    env = GameEnv(Evens())
    env.reset(seed=0)
    for move in ("1", "0", "1", "1"):
        env.step(move)
    assert env.rewards == {"player_0": 1.0, "player_1": -1.0}
    assert env.infos["player_0"]["metrics"]["drawn"] == 1.0
    assert env.observe("player_1")["text"].endswith("Draw.")


def test_an_agent_is_shown_what_is_new_since_its_last_action_however_often_it_asks():
    env = GameEnv(Three())
    env.reset(seed=0)
    assert env.observe("player_0") == {"text": "Say something."}
    env.step("ah")
    env.step("oh")
    assert env.observe("player_2") == env.observe("player_2")
    assert env.observe("player_2") == {"text": "player 0 said ah.\nplayer 1 said oh.\nSay something."}
    assert env.observe("player_0") == {"text": "player 1 said oh.\nSay something."}


def test_a_game_of_three_pays_each_and_ends_for_all():
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
    with pytest.raises(EpisodeProtocolError, match="reset"):
        env.step("d")


def test_an_illegal_move_loses_and_says_why():
    env = GameEnv(Nim())
    env.reset(seed=0)
    env.step("2")
    env.step("four")
    assert env.rewards == {"player_0": 1.0, "player_1": -1.0}
    assert "Illegal move: 'four' is none of 1, 2, 3. You lose." in env.observe("player_1")["text"]
    assert "Illegal move by player_1. You win." in env.observe("player_0")["text"]
    assert env.infos["player_1"]["metrics"]["illegal_move"] == 1.0
    assert env.infos["player_0"]["metrics"]["illegal_move"] == 0.0


def test_an_illegal_move_is_tried_again_so_often_and_then_loses():
    env = GameEnv(Nim(), on_illegal="retry:2")
    env.reset(seed=0)
    first = env.observe("player_0")
    env.step("x")
    assert env.agent_selection == "player_0"
    # Not the stones again: nothing has changed since they were shown.
    assert env.observe("player_0") == {"text": "Illegal move: 'x' is none of 1, 2, 3. Try again."}
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


def test_the_tries_are_counted_anew_in_each_turn():
    env = GameEnv(Nim(), on_illegal="retry:1")
    env.reset(seed=0)
    for _ in range(4):
        env.step("x")
        env.step("1")
    assert not any(env.terminations.values())


def test_a_random_move_is_played_instead_and_told_only_to_whose_move_it_was():
    env = GameEnv(Nim(), on_illegal="random")
    env.reset(seed=0)
    before = env.game.left
    env.step("x")
    assert 1 <= before - env.game.left <= 3
    assert "Illegal" not in env.observe("player_1")["text"]
    env.step("1")
    told = env.observe("player_0")["text"].splitlines()[0]
    assert re.fullmatch(r"Illegal move: 'x' is none of 1, 2, 3\. [123] was played instead\.", told)


@pytest.mark.parametrize(
    ("moves", "rewards"), [(("x", "1"), (-1.0, 1.0)), (("1", "x"), (1.0, -1.0)), (("x", "x"), (0.0, 0.0))]
)
def test_an_illegal_move_of_a_round_loses_it_once_all_have_moved(moves, rewards):
    env = GameEnv(Evens())
    env.reset(seed=0)
    for move in moves:
        assert not any(env.terminations.values())
        env.step(move)
    assert tuple(env.rewards.values()) == rewards
    assert all(env.terminations.values())


@pytest.mark.parametrize("setting", ["", "forgive", "retry", "retry:0", "retry:-1", "retry:9999", None, 3])
def test_a_rule_for_illegal_moves_that_is_none_is_refused(setting):
    game = Nim()
    game.on_illegal = setting
    with pytest.raises(InvalidRequestError, match="no rule for illegal moves") as refused:
        GameEnv(game)
    assert refused.value.field == "on_illegal"


def test_random_moves_are_refused_where_legal_ones_are_unknown():
    with pytest.raises(InvalidRequestError, match="define legal"):
        GameEnv(Three(), on_illegal="random")


def test_the_rule_stands_in_the_metadata():
    assert GameEnv(Nim()).metadata["on_illegal"] == "lose"
    assert GameEnv(Nim(), on_illegal="retry:3").metadata["on_illegal"] == "retry:3"


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        ((1.0,), InvalidEnvironmentError),
        ((1.0, 2.0, 3.0), InvalidEnvironmentError),
        (float("nan"), InvalidRewardError),
        ((0.0, float("inf")), InvalidRewardError),
    ],
)
def test_rewards_that_are_none_are_refused_and_shown(outcome, error):
    class Wrong(Nim):
        def play(self, player, move):
            return outcome

    env = GameEnv(Wrong())
    env.reset(seed=0)
    with pytest.raises(error, match="Wrong ended with the rewards"):
        env.step("1")


def test_an_action_that_is_no_text_is_refused():
    env = GameEnv(Nim())
    env.reset(seed=0)
    with pytest.raises(InvalidRequestError, match="must be a str, not int"):
        env.step(1)


def test_going_on_without_a_seed_continues_the_chance():
    def starts(count):
        env = GameEnv(Nim())
        env.reset(seed=5)
        found = []
        for _ in range(count):
            found.append(env.game.left)
            env.reset()
        return found

    assert starts(20) == starts(20)
    assert len(set(starts(20))) > 3


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=50), st.sampled_from(["lose", "random", "retry:1"]), st.integers(0, 5))
def test_no_text_breaks_a_game(text, policy, seed):
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
