import numpy as np
import pytest

from tests.tinkergym.registration.coins import Coins
from tinkergym.errors import InvalidEnvironmentError, InvalidRequestError
from tinkergym.games.game_env import GameEnv
from tinkergym.rollout.table_players import ReadingPlayer, check_player, offered, seat_player
from tinkergym.schema.episodes import TablePlayer


@pytest.fixture
def game():
    game = GameEnv(Coins(coins=9))
    game.reset(seed=0)
    return game


def test_offers_players_of_a_game_by_name(game):
    assert offered(game) == ["random", "greedy"]
    assert offered(object()) == []


def test_scripts_player_as_the_games_player(game):
    player = seat_player(game, "player_0", TablePlayer(name="greedy"), seed=1)
    assert player.act("player_0", None) == "2"


def test_keeps_chance_of_a_seat_its_own(game):
    def drawn(seed):
        player = seat_player(game, "player_0", TablePlayer(name="random"), seed)
        return [player.act("player_0", None) for _ in range(30)]

    assert drawn(1) == drawn(1) != drawn(2)


def test_repeats_record_of_recorded_player_and_no_more(game):
    player = seat_player(game, "player_0", TablePlayer(kind="replay", name="job-1", actions=["1", "2"]), 0)
    assert [player.act("player_0", None), player.act("player_0", None)] == ["1", "2"]
    with pytest.raises(InvalidEnvironmentError):
        player.act("player_0", None)


def test_begins_reading_player_anew_with_text():
    class Reader:
        def reset(self, *, seed):
            self.seed = seed

        def act(self, observation):
            return f"{observation}!"

    reader = Reader()
    player = ReadingPlayer(reader, np.random.default_rng(3))
    assert player.act("player_0", {"text": "5 coins."}) == "5 coins.!"
    assert reader.seed == int(np.random.default_rng(3).integers(2**31))


@pytest.mark.parametrize("name", ["perfect", ""])
def test_rejects_player_that_the_game_lacks_by_its_seat(game, name):
    with pytest.raises(InvalidRequestError) as caught:
        check_player(game, "player_1", TablePlayer(name=name or "nobody"))
    assert caught.value.field == "agents.player_1"
    with pytest.raises(InvalidRequestError):
        check_player(object(), "player_1", TablePlayer(name="random"))
