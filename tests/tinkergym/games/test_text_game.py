import pytest

from tests.tinkergym.games.small_games import Nim
from tinkergym.errors import (
    InvalidEnvironmentError,
    InvalidRewardError,
)
from tinkergym.games.game_env import GameEnv


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        ((1.0,), InvalidEnvironmentError),
        ((1.0, 2.0, 3.0), InvalidEnvironmentError),
        (float("nan"), InvalidRewardError),
        ((0.0, float("inf")), InvalidRewardError),
        ({0: -1.0, 1: 1.0}, InvalidEnvironmentError),
        ({1.0, -1.0}, InvalidEnvironmentError),
        ("12", InvalidEnvironmentError),
        ([None, 1.0], InvalidEnvironmentError),
        (object(), InvalidEnvironmentError),
        ([[1.0], [2.0, 3.0]], InvalidEnvironmentError),
    ],
)
def test_rejects_and_shows_rewards_that_are_none(outcome, error):
    class Wrong(Nim):
        def play(self, player, move):
            return outcome

    env = GameEnv(Wrong())
    env.reset(seed=0)
    with pytest.raises(error):
        env.step("1")


def test_continues_the_chance_without_a_seed():
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


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda game: game.give(2, 1.0), InvalidEnvironmentError),
        (lambda game: game.give(-1, 1.0), InvalidEnvironmentError),
        (lambda game: game.give("player_0", 1.0), InvalidEnvironmentError),
        (lambda game: game.give(0, float("nan")), InvalidRewardError),
        (lambda game: game.give(0, "1"), InvalidRewardError),
        (lambda game: game.give(0, "much"), InvalidRewardError),
        (lambda game: game.eliminate(5), InvalidEnvironmentError),
        (lambda game: (game.eliminate(1), game.give(1, 1.0)), InvalidEnvironmentError),
    ],
)
def test_rejects_payment_that_cannot_be_made(call, error):
    class Game(Nim):
        def play(self, player, move):
            call(self)

    env = GameEnv(Game())
    env.reset(seed=0)
    with pytest.raises(error):
        env.step("1")


def test_rejects_players_that_are_added_when_game_begins():
    class Grows(Nim):
        def begin(self, rng):
            super().begin(rng)
            self.players = 3

    class Grown(Grows):
        def __init__(self):
            self.players = 3

        def begin(self, rng):
            self.players = 2

    for game in (Grows(), Grown()):
        with pytest.raises(InvalidEnvironmentError) as caught:
            GameEnv(game).reset(seed=0)
        assert caught.value.field == "environment"

    class Empty(Nim):
        players = ()

    with pytest.raises(InvalidEnvironmentError) as caught:
        GameEnv(Empty())
    assert caught.value.field == "environment"


@pytest.mark.parametrize("method", ["first_player", "next_player"])
def test_rejects_missing_player_by_the_methods_name(method):
    game = type("Lost", (Nim,), {method: lambda self, *player: 7})
    env = GameEnv(game())
    with pytest.raises(InvalidEnvironmentError) as caught:
        env.reset(seed=0)
        env.step("1")
    assert caught.value.field == "environment"
