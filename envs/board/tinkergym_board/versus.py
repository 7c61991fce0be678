"""The board games against an opponent."""

from functools import partial

from tinkergym.registration.games import make_against_opponent

tictactoe = partial(make_against_opponent, "board/TicTacToe-v0")
gomoku = partial(make_against_opponent, "board/Gomoku-v0")
