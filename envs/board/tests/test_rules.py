import pytest
from hypothesis import given
from hypothesis import strategies as st
from tinkergym_board.rules import Position, Rules

from tinkergym.errors import InvalidRequestError


def play(rules, *cells):
    position = Position(rules)
    for cell in cells:
        position = position.played(cell)
    return position


@pytest.mark.parametrize(("size", "win", "lines"), [(3, 3, 8), (5, 4, 28), (4, 3, 24), (15, 5, 572)])
def test_has_every_row_across_down_and_diagonal(size, win, lines):
    assert len(Rules(size, win).lines) == lines


@pytest.mark.parametrize(
    "cells",
    [(0, 3, 1, 4, 2), (0, 1, 3, 2, 6), (0, 1, 4, 2, 8), (2, 0, 4, 1, 6)],
    ids=["across", "down", "\\", "/"],
)
def test_wins_by_three_in_a_row_in_every_direction(cells):
    position = play(Rules(3, 3), *cells)
    assert position.winner == 0
    assert position.over


def test_keeps_a_row_within_the_edge_of_the_board():
    # Cells 2, 3 and 4 are neighbours by number only: c1, a2, b2.
    assert play(Rules(3, 3), 2, 0, 3, 1, 4).winner is None


def test_wins_by_a_row_longer_than_needed_too():
    assert play(Rules(5, 3), 0, 10, 1, 11, 3, 20, 4, 21, 2).winner == 0


def test_draws_on_full_board_without_a_row():
    position = play(Rules(3, 3), 0, 1, 2, 4, 3, 5, 7, 6, 8)
    assert position.over
    assert position.winner is None


def test_wins_by_winning_move_on_the_last_free_cell():
    position = play(Rules(3, 3), 0, 2, 4, 3, 1, 7, 5, 6, 8)
    assert position.full
    assert position.winner == 0


@pytest.mark.parametrize("cell", [0, -1, 9])
def test_rejects_cell_that_is_taken_or_off_the_board(cell):
    with pytest.raises(ValueError, match="cannot be played"):
        play(Rules(3, 3), 0).played(cell)


def test_rejects_every_move_after_the_end():
    with pytest.raises(ValueError, match="cannot be played"):
        play(Rules(3, 3), 0, 3, 1, 4, 2).played(8)


@pytest.mark.parametrize(
    ("size", "win", "field"), [(1, 1, "size"), (27, 5, "size"), (3, 4, "win"), (3, 1, "win")]
)
def test_rejects_unplayable_board_by_name(size, win, field):
    with pytest.raises(InvalidRequestError) as refused:
        Rules(size, win)
    assert refused.value.field == field


@given(st.permutations(range(16)))
def test_alternates_players_and_names_last_mover_winner(order):
    position = Position(Rules(4, 3))
    for cell in order:
        if position.over:
            break
        mover = position.to_move
        position = position.played(cell)
        assert position.owner(cell) == mover
        assert position.to_move == 1 - mover
        assert position.winner in (None, mover)
