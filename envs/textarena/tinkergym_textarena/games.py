"""The games that are registered, and moves to try in them.

Chosen by playing all of them: these can be made without downloads, keys and other people, give the same
episode for the same seed in every process, and stand any text as an action.

A list of moves need not be exact - what the game refuses is found out by trying it on a copy -, but each move
that a random opponent is to play must be in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import permutations, product
from typing import Any

Moves = Callable[[Any], list[str]]
"""Takes the game, in the state it is in, and returns moves that may be legal."""


def _always(*moves: str) -> Moves:
    return lambda _game: list(moves)


def _numbers(count: int, first: int = 0) -> Moves:
    return _always(*(f"[{number}]" for number in range(first, first + count)))


def _nim(game: Any) -> list[str]:
    piles = game.state.game_state["piles"]
    return [f"[{pile} {taken}]" for pile, left in enumerate(piles) for taken in range(1, left + 1)]


def _columns(game: Any) -> list[str]:
    return [f"[col {column}]" for column in range(len(game.state.game_state["board"][0]))]


def _squares(game: Any) -> list[str]:
    board = game.state.game_state["board"]
    return [f"[{row}, {column}]" for row, column in product(range(len(board)), range(len(board[0])))]


def _pairs(game: Any) -> list[str]:
    board = game.state.game_state["board"]
    cells = list(product(range(len(board)), range(len(board[0]))))
    return [f"[{a} {b} {c} {d}]" for (a, b), (c, d) in product(cells, cells) if (a, b) < (c, d)]


def _trades(game: Any) -> list[str]:
    names = game.resource_names
    offers = [f"[Offer: 1 {mine} -> 1 {yours}]" for mine, yours in product(names, names) if mine != yours]
    return ["[Accept]", "[Deny]", *offers]


def _splits(game: Any) -> list[str]:
    del game
    attacks = [f"[attack {mine} {yours}]" for mine, yours in product(range(2), range(2))]
    return [*attacks, *(f"[split {left} {right}]" for left, right in product(range(5), range(5)))]


def _bids(game: Any) -> list[str]:
    del game
    return ["[Call]", *(f"[Bid: {count}, {face}]" for count, face in product(range(1, 11), range(1, 7)))]


def _codes(game: Any) -> list[str]:
    codes = permutations(range(1, game.num_numbers + 1), game.code_length)
    return [f"[{' '.join(map(str, code))}]" for code in codes]


VERSUS: Mapping[str, Moves] = {
    "Chopsticks": _splits,
    "ConnectFour": _columns,
    "GameOfPureStrategy": _always(*(f"[{card}]" for card in "A23456789"), "[10]", "[J]", "[Q]", "[K]"),
    "IteratedMatchingPennies": _always("[heads]", "[tails]"),
    "IteratedPrisonersDilemma": _always("[Cooperate]", "[Defect]"),
    "IteratedRockPaperScissors": _always("[rock]", "[paper]", "[scissors]"),
    "IteratedTwoThirdsAverage": _numbers(101),
    "KuhnPoker": _always("[check]", "[bet]", "[call]", "[fold]"),
    "LiarsDice": _bids,
    "MemoryGame": _pairs,
    "Nim": _nim,
    "Othello": _squares,
    "PigDice": _always("[roll]", "[hold]"),
    "SimpleNegotiation": _trades,
    "SimpleTak": _numbers(16),
    "TicTacToe": _numbers(9),
    "UltimateTicTacToe": _always(*(f"[{board}, {cell}]" for board, cell in product(range(9), range(9)))),
    "WildTicTacToe": _always(*(f"[{mark} {cell}]" for mark, cell in product("XO", range(9)))),
}
"""Games for two with their moves."""

_DIRECTIONS = _always("[up]", "[down]", "[left]", "[right]")

SINGLE: Mapping[str, Moves | None] = {
    "2048": _DIRECTIONS,
    "Bandit": _always("[red]", "[blue]", "[green]", "[yellow]", "[purple]"),
    "Blackjack": _always("[Hit]", "[Stand]"),
    "FifteenPuzzle": _DIRECTIONS,
    "FrozenLake": _DIRECTIONS,
    "GuessTheNumber": _numbers(20, first=1),
    "LightsOut": _always(*(f"[{row} {column}]" for row, column in product(range(5), range(5)))),
    "LogicPuzzle": None,
    "Mastermind": _codes,
    "Minesweeper": _always(*(f"[{row} {column}]" for row, column in product(range(8), range(8)))),
    "PegJump": _always(*(f"[{origin} {to}]" for origin, to in product(range(1, 16), range(1, 16)))),
    "Secretary": _always("[accept]", "[continue]"),
    "Set": None,
    "Sudoku": None,
    "ThreeCardMonte": _numbers(3),
    "TowerOfHanoi": _always(*(f"[{origin} {to}]" for origin, to in product("ABC", "ABC") if origin != to)),
}
"""Games for one with their moves; None where they are too many to list, or unknown."""


ALWAYS_LEGAL = frozenset(
    {
        "Bandit",
        "Blackjack",
        "IteratedMatchingPennies",
        "IteratedPrisonersDilemma",
        "IteratedRockPaperScissors",
        "IteratedTwoThirdsAverage",
        "Mastermind",
    }
)
"""Games that take each of their moves at any time, so that none need be tried."""


def always_legal(game_id: str) -> bool:
    """Whether a game takes each of its moves at any time."""
    return game_id.partition("-v")[0] in ALWAYS_LEGAL


def moves_of(game_id: str) -> Moves | None:
    """Return the moves of a game by its TextArena id, as `Nim-v0-large`; None if none are known."""
    name = game_id.partition("-v")[0]
    return VERSUS.get(name) or SINGLE.get(name)
