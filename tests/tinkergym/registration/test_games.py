import json
import sys
from types import SimpleNamespace

import gymnasium as gym
import pytest

import tinkergym as tg
from tests.tinkergym.registration.coins import Coins
from tinkergym.errors import InvalidEnvironmentError, InvalidRequestError, UnknownEnvironmentError
from tinkergym.games.game_env import GameEnv
from tinkergym.registration import packs
from tinkergym.registration.games import make_playable, register_aec
from tinkergym.registration.packs import registered_games
from tinkergym.schema.jobs.parts import EnvironmentRef


class Alone(Coins):
    players = 1


class Other(Coins):
    pass


@pytest.fixture(autouse=True)
def registered():
    assert tg.register_game("test/Coins-v0", Coins, kwargs={"coins": 7}) == "test/CoinsVs-v0"
    assert tg.register_game("test/Alone-v3", Alone) == "test/Alone-v3"


def test_makes_game_and_environment_against_an_opponent_in_one_call():
    game = tg.make_game("test/Coins-v0", coins=6)
    game.reset(seed=0)
    assert game.observe("player_0") == {"text": "6 coins."}
    env = gym.make("test/CoinsVs-v0", opponent="greedy", seat="first")
    assert env.reset(seed=0)[0] == "7 coins."
    assert env.step("1")[0] == "4 coins."
    assert {"test/Coins-v0", "test/Alone-v3"} <= set(registered_games())


def test_tells_bare_game_from_the_environment_against_an_opponent():
    with pytest.raises(UnknownEnvironmentError):
        tg.make("test/Coins-v0")


def test_names_single_player_game_by_its_id_without_opponent():
    env = tg.make("test/Alone-v3", coins=3)
    assert env.reset(seed=0)[0] == "3 coins."
    assert env.step("2")[0] == "1 coins."
    observation, reward, over, _, info = env.step("1")
    assert (observation, reward, over) == ("0 coins.\nYou win.", 1.0, True)
    assert info == {"metrics": {"won": 1.0, "illegal_move": 0.0}}
    assert tg.make_game("test/Alone-v3").possible_agents == ["player_0"]


def test_records_illegal_rule_opponent_and_seat_in_the_spec():
    spec = tg.make("test/CoinsVs-v0").spec
    assert spec.kwargs == {
        "game": "test/Coins-v0",
        "opponent": "random",
        "seat": "seed",
        "on_illegal": "lose",
        "coins": 7,
    }
    assert json.loads(spec.to_json())["kwargs"]["on_illegal"] == "lose"
    assert tg.make("test/CoinsVs-v0", on_illegal="retry:2").spec.kwargs["on_illegal"] == "retry:2"


def test_replaces_same_registration_and_rejects_another_game():
    tg.register_game("test/Coins-v0", Coins)
    with pytest.raises(InvalidRequestError) as caught:
        tg.register_game("test/Coins-v0", Other)
    assert caught.value.field == "id"
    with pytest.raises(InvalidRequestError) as caught:
        tg.register_game("test/Coins", Coins)
    assert caught.value.field == "id"
    with pytest.raises(InvalidRequestError) as caught:
        tg.register_game("test/New-v0", Coins, opponents=("random", "genius"))
    assert caught.value.field == "opponents"


def test_makes_known_game_without_reading_packs_again(monkeypatch):
    def read_again():
        raise AssertionError("every episode would wait for it")

    monkeypatch.setattr(packs, "listed_distributions", read_again)
    game = make_playable(EnvironmentRef(id="tabletop/KuhnPoker-v0"))
    assert game.possible_agents == ["first", "second"]


def test_rejects_unknown_setting_by_name():
    with pytest.raises(InvalidEnvironmentError) as caught:
        tg.make("test/CoinsVs-v0", stones=3)
    assert caught.value.field == "environment"


def test_makes_own_aec_environment_when_asked_for(monkeypatch):
    asked = []

    def make(coins, **chosen):
        asked.append((coins, chosen))
        return GameEnv(Coins(coins))

    monkeypatch.setitem(sys.modules, "own_games", SimpleNamespace(make=make))
    register_aec("test/Own-v0", "own_games:make", kwargs={"coins": 3})
    assert asked == []
    game = tg.make_game("test/Own-v0", on_illegal="random")
    game.reset(seed=0)
    assert game.observe("player_0") == {"text": "3 coins."}
    assert asked == [(3, {"on_illegal": "random", "render_mode": None})]
    with pytest.raises(InvalidRequestError) as refused:
        register_aec("test/Own-v0", "own_games")
    assert refused.value.field == "entry_point"
    with pytest.raises(InvalidRequestError) as caught:
        register_aec("test/Own-v0", "own_games:another")
    assert caught.value.field == "id"


def test_names_environment_that_was_asked_for_in_error():
    with pytest.raises(InvalidEnvironmentError) as caught:
        tg.make("games/NimVs-v0", bord=3)
    assert "games/NimVs-v0" in caught.value.message
    assert "games/Nim-v0" not in caught.value.message
