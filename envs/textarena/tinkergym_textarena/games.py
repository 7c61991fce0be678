"""The registered games, and candidate moves for them.

Chosen by playing all of them: these can be created without downloads, keys and other people, give the same
episode for the same seed in every process, and accept any text as an action.

A list of moves need not be exact, because refused moves are found by trying them on a copy, but every move
that a random opponent should play must be in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations, permutations, product
from typing import Any

Moves = Callable[[Any], list[str]]
"""Receives the game in its current state, and returns moves that may be legal."""


def _always(*moves: str) -> Moves:
    return lambda _game: list(moves)


def _numbers(count: int) -> Moves:
    return _always(*(f"[{number}]" for number in range(count)))


def _nim(game: Any) -> list[str]:
    piles = game.state.game_state["piles"]
    return [f"[{pile} {taken}]" for pile, left in enumerate(piles) for taken in range(1, left + 1)]


def _columns(game: Any) -> list[str]:
    return [f"[col {column}]" for column in range(len(game.state.game_state["board"][0]))]


def _flips(game: Any) -> list[str]:
    moves = [f"[{row}, {column}]" for row, column in game.state.game_state["valid_moves"]]
    # A player who cannot move must still say something.
    return moves or ["[skip]"]


def _pairs(game: Any) -> list[str]:
    matched = game.state.game_state["matched_positions"]
    cells = [cell for cell in product(range(game.grid_size), repeat=2) if cell not in matched]
    return [f"[{a} {b} {c} {d}]" for (a, b), (c, d) in combinations(cells, 2)]


def _trades(game: Any) -> list[str]:
    names = game.resource_names
    offers = [f"[Offer: 1 {mine} -> 1 {yours}]" for mine, yours in product(names, names) if mine != yours]
    return ["[Accept]", "[Deny]", *offers]


def _splits(game: Any) -> list[str]:
    del game
    attacks = [f"[attack {mine} {yours}]" for mine, yours in product(range(2), range(2))]
    return [*attacks, *(f"[split {left} {right}]" for left, right in product(range(5), range(5)))]


def _bids(game: Any) -> list[str]:
    bid = game.state.game_state["current_bid"]
    higher = [
        f"[Bid: {count}, {face}]"
        for count, face in product(range(1, 11), range(1, 7))
        if game._is_valid_bid(count, face, bid)[0]
    ]
    return ["[Call]", *higher] if bid["quantity"] else higher


def _guesses(game: Any) -> list[str]:
    numbers = range(game.min_number, game.max_number + 1)
    return [f"[{number}]" for number in numbers if number not in game.guessed_numbers]


def _hidden_cells(game: Any) -> list[str]:
    cells = product(range(game.rows), range(game.cols))
    return [f"[{row} {column}]" for row, column in cells if not game.revealed[row][column]]


def _lights(game: Any) -> list[str]:
    return [f"[{row} {column}]" for row, column in product(range(game.size), repeat=2)]


def _codes(game: Any) -> list[str]:
    guessed = [tuple(entry["guess"]) for entry in game.state.game_state["history"]]
    codes = permutations(range(1, game.num_numbers + 1), game.code_length)
    return [f"[{' '.join(map(str, code))}]" for code in codes if code not in guessed]


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
    "Othello": _flips,
    "PigDice": _always("[roll]", "[hold]"),
    "SimpleNegotiation": _trades,
    "SimpleTak": _numbers(16),
    "TicTacToe": _numbers(9),
    "UltimateTicTacToe": _always(*(f"[{board}, {cell}]" for board, cell in product(range(9), range(9)))),
    "WildTicTacToe": _always(*(f"[{mark} {cell}]" for mark, cell in product("XO", range(9)))),
}
"""Games for two with their moves."""

_DIRECTIONS = _always("[up]", "[down]", "[left]", "[right]")

SINGLE: Mapping[str, Moves] = {
    "2048": _DIRECTIONS,
    "Bandit": _always("[red]", "[blue]", "[green]", "[yellow]", "[purple]"),
    "Blackjack": _always("[Hit]", "[Stand]"),
    "FifteenPuzzle": _DIRECTIONS,
    "FrozenLake": _DIRECTIONS,
    "GuessTheNumber": _guesses,
    "LightsOut": _lights,
    "Mastermind": _codes,
    "Minesweeper": _hidden_cells,
    "Secretary": _always("[accept]", "[continue]"),
    "TowerOfHanoi": _always(*(f"[{origin} {to}]" for origin, to in product("ABC", "ABC") if origin != to)),
}
"""Games for one with their moves."""


EXACT = frozenset(
    {
        "Bandit",
        "Blackjack",
        "GuessTheNumber",
        "IteratedMatchingPennies",
        "IteratedPrisonersDilemma",
        "IteratedRockPaperScissors",
        "IteratedTwoThirdsAverage",
        "LiarsDice",
        "LightsOut",
        "Mastermind",
        "MemoryGame",
        "Minesweeper",
        "Nim",
        "Othello",
    }
)
"""Games whose moves above are exactly the legal ones, so none need be tried.

Minesweeper must be here: it treats a step on a mine as an invalid move, so trying would reveal the mines.
"""

WITHOUT_CHANCE = frozenset({"TowerOfHanoi"})
"""Games for one player that are the same for every seed."""


def name_of(game_id: str) -> str:
    """Return a game's name: `Nim` for `Nim-v0-large`."""
    return game_id.partition("-v")[0]


def moves_of(game_id: str) -> Moves | None:
    """Return the moves of a game by its TextArena id, such as `Nim-v0-large`; None if none are known."""
    return VERSUS.get(name_of(game_id)) or SINGLE.get(name_of(game_id))
