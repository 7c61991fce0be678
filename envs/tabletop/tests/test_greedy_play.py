"""Exact exploitability of players that never vary."""

from __future__ import annotations

import pytest
from tinkergym_tabletop.exploitability import GameTree, Situation
from tinkergym_tabletop.greedy_play import greedy_exploitability

from tinkergym.errors import InvalidRequestError
from tinkergym.registration.games import make_game

players = pytest.importorskip("tinkergym_board.players")
rules_module = pytest.importorskip("tinkergym_board.rules")
text = pytest.importorskip("tinkergym_board.text")
pytest.importorskip("tinkergym_tabletop")

TICTACTOE = "board/TicTacToe-v0"


def first_legal(situations):
    return {one: one.legal[0] for one in situations}


def perfectly(situations: list[Situation]) -> dict[Situation, str]:
    """Play tic-tac-toe without a mistake: each observation shows the whole board."""
    rules = rules_module.Rules()
    found = {}
    for one in situations:
        position = text.read_position(one.observations[-1], rules)
        found[one] = text.cell_names(rules.size)[players.perfect_moves(position)[0]]
    return found


def test_exploits_careless_play_of_tic_tac_toe_but_not_perfect():
    perfect = greedy_exploitability(make_game(TICTACTOE), perfectly)
    assert (perfect.exploitability, perfect.values) == (0.0, {"x": 0.0, "o": 0.0})
    careless = greedy_exploitability(make_game(TICTACTOE), first_legal)
    assert careless.best_responses == {"x": 1.0, "o": 1.0}
    # First free cell against first free cell: x wins, so only o has something to gain.
    assert careless.nash_conv == 2.0
    assert 0 < careless.situations < 3_000


def test_agrees_with_whole_tree_where_that_is_small_enough():
    game = make_game("tabletop/LeducPoker-v0")
    whole = GameTree(game).exploitability(lambda one: {one.legal[0]: 1.0})
    greedy = greedy_exploitability(make_game("tabletop/LeducPoker-v0"), first_legal)
    assert greedy.values == pytest.approx(whole.values)
    assert greedy.best_responses == pytest.approx(whole.best_responses)


def test_rejects_action_that_is_not_legal():
    with pytest.raises(InvalidRequestError):
        greedy_exploitability(make_game(TICTACTOE), lambda some: dict.fromkeys(some, "z"))
