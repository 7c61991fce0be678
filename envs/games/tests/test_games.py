import numpy as np
import pytest
from tinkergym_games.baselines import returns

from tinkergym.errors import InvalidRequestError
from tinkergym.registration.environments import make
from tinkergym.testing import EnvContract


class TestGuessNumber(EnvContract):
    environment_id = "games/GuessNumber-v0"

    def actions(self, seed):
        return [str(number) for number in np.random.default_rng(seed).integers(1, 21, size=5)]


class TestNim(EnvContract):
    environment_id = "games/NimVs-v0"

    def actions(self, seed):
        return ["1"] * 15


class TestRockPaperScissors(EnvContract):
    environment_id = "games/RockPaperScissorsVs-v0"

    def actions(self, seed):
        return ["rock", "paper", "scissors"]


def test_finds_by_halving_every_number_that_guesses_can_reach():
    assert returns(make("games/GuessNumber-v0", highest=31).unwrapped, "gold", range(200)) == [1.0] * 200


def test_answers_guess_with_higher_or_lower_and_finally_the_number():
    env = make("games/GuessNumber-v0", guesses=2)
    observation, _ = env.reset(seed=0)
    assert observation == "Guess my number from 1 to 20. You have 2 guesses."
    number = env.unwrapped.game.number
    assert 1 < number < 20
    assert env.step("1")[0] == "Higher."
    observation, reward, over, _, info = env.step("20")
    assert (observation, reward, over) == (f"It was {number}.", 0.0, True)
    assert info["metrics"] == {"won": 0.0, "guesses": 2.0, "illegal_move": 0.0}


def test_ends_game_without_pay_on_what_is_no_number():
    env = make("games/GuessNumber-v0")
    env.reset(seed=0)
    observation, reward, over, _, info = env.step("seven")
    assert "Illegal move: 'seven'" in observation
    assert (reward, over, info["metrics"]["illegal_move"]) == (0.0, True, 1.0)


def test_draws_every_number():
    env = make("games/GuessNumber-v0", highest=5, guesses=1)
    drawn = set()
    for seed in range(100):
        env.reset(seed=seed)
        drawn.add(env.unwrapped.game.number)
    assert drawn == {1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("env_id", "settings", "field"),
    [
        ("games/GuessNumber-v0", {"highest": 0}, "highest"),
        ("games/GuessNumber-v0", {"guesses": 21}, "guesses"),
        ("games/RockPaperScissorsVs-v0", {"rounds": 0}, "rounds"),
    ],
)
def test_rejects_setting_out_of_range_by_name(env_id, settings, field):
    with pytest.raises(InvalidRequestError) as refused:
        make(env_id, **settings)
    assert refused.value.field == field


def test_wins_nim_by_gold_move_from_every_winnable_heap():
    for opponent in ("random", "perfect"):
        env = make("games/NimVs-v0", opponent=opponent).unwrapped
        for seed in range(60):
            env.reset(seed=seed)
            winning, over = env.game.left % 4 != 0, False
            while not over:
                _, reward, over, _, _ = env.step(env.gold_action())
            assert reward == 1.0 or not winning


def test_can_beat_the_copycat_in_every_round_after_the_first():
    env = make("games/RockPaperScissorsVs-v0", opponent="copycat", rounds=5)
    beats = {"rock": "paper", "paper": "scissors", "scissors": "rock"}
    for seed in range(20):
        env.reset(seed=seed)
        shown = "rock"
        for _ in range(5):
            _, reward, _, _, _ = env.step(shown)
            shown = beats[shown]
        assert reward == 1.0


def test_tells_both_players_of_a_round():
    env = make("games/RockPaperScissorsVs-v0", opponent="copycat", seat="second")
    first, _ = env.reset(seed=0)
    assert first == "Rock, paper or scissors? 3 rounds."
    told = env.step("rock")[0]
    assert told.startswith("You showed rock, your opponent ")
    assert env.step("paper")[0] == "You showed paper, your opponent rock."


@pytest.mark.parametrize(
    ("env_id", "settings", "player", "low", "high"),
    [
        ("games/GuessNumber-v0", {}, "random", 0.17, 0.29),
        ("games/NimVs-v0", {"opponent": "random"}, "gold", 0.92, 1.0),
        ("games/NimVs-v0", {"opponent": "perfect"}, "random", -1.0, -0.88),
    ],
)
def test_scores_simple_players_as_the_page_says(env_id, settings, player, low, high):
    assert low <= np.mean(returns(make(env_id, **settings).unwrapped, player, range(300))) <= high
