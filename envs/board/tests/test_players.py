import numpy as np
import pytest
from tinkergym_board.players import heuristic_player, perfect_player, random_player
from tinkergym_board.rules import Position, Rules
from tinkergym_board.text import cell_names, read_position

PLAYERS = [random_player, heuristic_player, perfect_player]


def answer(player, board, size=3, win=3, seed=0):
    position = read_position(board, Rules(size, win))
    return cell_names(size)[player(position, np.random.default_rng(seed))]


@pytest.mark.parametrize("player", PLAYERS)
def test_takes_the_only_free_cell(player):
    assert answer(player, "X O X\nX O O\nO X c3") == "c3"


@pytest.mark.parametrize("player", PLAYERS)
def test_draws_all_chance_of_player_from_the_generator(player):
    position = Position(Rules(3, 3))
    first = [player(position, rng) for rng in [np.random.default_rng(7)] for _ in range(10)]
    again = [player(position, rng) for rng in [np.random.default_rng(7)] for _ in range(10)]
    assert first == again


@pytest.mark.parametrize("player", [heuristic_player, perfect_player])
def test_wins_rather_than_blocks_as_a_sensible_player(player):
    assert answer(player, "X X c1\nO O c2\na3 b3 c3") == "c1"


@pytest.mark.parametrize("player", [heuristic_player, perfect_player])
def test_blocks_a_winning_row_as_a_sensible_player(player):
    assert answer(player, "X X c1\na2 O c2\na3 b3 c3") == "c1"


def test_blocks_gap_on_larger_board_as_heuristic_player():
    board = "a1 b1 c1 d1 e1\na2 X b2 d2 e2\na3 b3 X d3 e3\na4 O O d4 e4\na5 b5 c5 d5 X"
    board = board.replace("X b2", "X c2")
    assert answer(heuristic_player, board, size=5, win=4) == "d4"


def test_never_loses_as_perfect_player():
    """Every game that an opponent can force it into, from both seats."""

    def walk(position, seat):
        if position.over:
            assert position.winner in (None, seat)
        elif position.to_move == seat:
            walk(position.played(perfect_player(position, np.random.default_rng(0))), seat)
        else:
            for cell in position.free:
                walk(position.played(cell), seat)

    for seat in (0, 1):
        walk(Position(Rules(3, 3)), seat)
