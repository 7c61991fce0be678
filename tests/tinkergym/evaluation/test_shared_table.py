import pytest

from tests.tinkergym.registration.coins import Coins
from tinkergym.errors import InvalidRequestError, OpponentFailedError
from tinkergym.evaluation.shared_table import SharedTable
from tinkergym.games.game_env import GameEnv


class Says:
    def __init__(self, text):
        self.text = text

    def act(self, observation):
        return self.text


def table_of(*, coins=5, **scripts):
    accounts = {}
    return SharedTable(GameEnv(Coins(coins=coins)), scripts, accounts), accounts


def test_moves_scripts_before_asking_a_policy_and_accounts_for_everybody():
    table, accounts = table_of(player_0="greedy")
    position = table.reset(seed=7)
    assert (position.agents, position.turn.agent) == (("player_1",), "player_1")
    assert not accounts[7].ended
    position = table.step("1")  # leaves 2, which the script takes
    assert position.turn is None
    account = accounts[7]
    assert account.ended
    assert account.returns == {"player_0": 1.0, "player_1": -1.0}
    assert (account.moves, account.forfeits) == (3, set())


def test_plays_game_of_scripts_alone_to_its_end():
    table, accounts = table_of(player_0="greedy", player_1=Says("1"))
    assert table.reset(seed=1).turn is None
    assert accounts[1].ended
    assert accounts[1].moves == 3


def test_accounts_for_loser_by_illegal_move_whoever_played():
    table, accounts = table_of(player_0=Says("nine"))
    assert table.reset(seed=1).turn is None
    assert accounts[1].forfeits == {"player_0"}
    assert accounts[1].ended


def test_repeats_game_by_seed_with_separate_chance_of_seats():
    def moves(seed):
        table, accounts = table_of(coins=40, player_0="random", player_1="random")
        table.reset(seed=seed)
        return accounts[seed].moves, accounts[seed].returns

    assert moves(3) == moves(3)
    assert len({moves(seed)[0] for seed in range(8)}) > 1


def test_names_player_that_fails():
    table, _ = table_of(player_0=object())
    with pytest.raises(OpponentFailedError):
        table.reset(seed=1)


def test_rejects_script_that_the_game_does_not_offer():
    with pytest.raises(InvalidRequestError) as caught:
        table_of(player_0="perfect")
    assert caught.value.field == "players"
