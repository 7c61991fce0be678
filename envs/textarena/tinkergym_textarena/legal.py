"""The moves that a game accepts now, and random ones among them."""

from __future__ import annotations

import itertools

import numpy as np

from tinkergym.errors import InvalidRequestError
from tinkergym_textarena.games import EXACT, moves_of, name_of
from tinkergym_textarena.native import NativeGame


def legal_moves(game: NativeGame) -> list[str] | None:
    """Return the moves that the game accepts now; None if there are too many to list.

    If they are not known exactly, each candidate is tried on a copy of the game.
    """
    moves = moves_of(game.id)
    if moves is None:
        return None
    listed = moves(game.plain)
    return listed if name_of(game.id) in EXACT else list(game.legal(listed))


def random_move(game: NativeGame, rng: np.random.Generator) -> str:
    """Return a random legal move; if there is none, any candidate."""
    moves = moves_of(game.id)
    assert moves is not None, "call need_moves first"
    listed = moves(game.plain)
    shuffled = [listed[int(index)] for index in rng.permutation(len(listed))]
    if name_of(game.id) not in EXACT:
        shuffled = [*itertools.islice(game.legal(shuffled), 1), *shuffled]
    return shuffled[0] if shuffled else ""


def need_moves(game_id: str) -> None:
    """Raise an error for a random opponent in a game whose moves are unknown.

    Raises:
        InvalidRequestError: They are unknown.
    """
    if moves_of(game_id) is None:
        raise InvalidRequestError(
            f"the moves of {game_id} are unknown, so a random opponent cannot choose one",
            hint="pass a list of texts that the opponent plays in order",
            field="opponent",
        )
