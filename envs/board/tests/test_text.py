import pytest
from hypothesis import given
from hypothesis import strategies as st
from tinkergym_board.rules import Position, Rules
from tinkergym_board.text import board_text, cell_names, read_cell, read_position


def test_shows_name_of_empty_cell_and_stone_of_taken_one():
    position = Position(Rules(3, 3)).played(6).played(4)
    assert board_text(position) == "a1 b1 c1\na2 O c2\nX b3 c3"


@pytest.mark.parametrize("text", ["b3", " b3\n", "B3"])
def test_reads_a_cell_whatever_its_case_and_surrounding_space(text):
    assert cell_names(3)[read_cell(text, 3)] == "b3"


@pytest.mark.parametrize(
    "text", ["", "d1", "a4", "b", "3", "b3.", "b3 b3", "I play b3", "b٣", "\x00", "b3" * 1000]
)
def test_reads_nothing_else_as_a_cell(text):
    assert read_cell(text, 3) is None


def test_shows_rows_of_two_digits_on_large_boards():
    assert read_cell("o15", 15) == 15 * 15 - 1


@given(st.permutations(range(25)), st.integers(0, 25), st.sampled_from(["", "You are X.\n"]))
def test_reads_running_game_back_from_its_text(order, moves, opening):
    position = Position(Rules(5, 4))
    for cell in order[:moves]:
        after = position.played(cell)
        if after.over:
            break
        position = after
    assert read_position(opening + board_text(position), position.rules) == position


@pytest.mark.parametrize("text", ["", "a1 b1 c1", "a1 b1 c1\na2 b2 c2\na3 b3 c4"])
def test_rejects_what_is_no_board(text):
    with pytest.raises(ValueError, match="not a board"):
        read_position(text, Rules(3, 3))
