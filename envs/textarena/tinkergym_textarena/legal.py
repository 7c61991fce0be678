"""Which moves a game takes now, and one of them by chance."""

from __future__ import annotations

import itertools

import numpy as np

from tinkergym.errors import InvalidRequestError
from tinkergym_textarena.games import EXACT, moves_of, name_of
from tinkergym_textarena.native import NativeGame


def legal_moves(game: NativeGame) -> list[str] | None:
    """Return the moves that the game takes now, None where they are too many to list.

    Where they are not known exactly, each that may be one is tried on a copy of the game.
    """
    moves = moves_of(game.id)
    if moves is None:
        return None
    listed = moves(game.plain)
    return listed if name_of(game.id) in EXACT else list(game.legal(listed))


def random_move(game: NativeGame, rng: np.random.Generator) -> str:
    """Return any legal move; if there is none, any move that may be one."""
    moves = moves_of(game.id)
    assert moves is not None, "need_moves comes first"
    listed = moves(game.plain)
    shuffled = [listed[int(index)] for index in rng.permutation(len(listed))]
    if name_of(game.id) not in EXACT:
        shuffled = [*itertools.islice(game.legal(shuffled), 1), *shuffled]
    return shuffled[0] if shuffled else ""


def need_moves(game_id: str) -> None:
    """Refuse a random opponent of a game whose moves are not known.

    Raises:
        InvalidRequestError: They are not.
    """
    if moves_of(game_id) is None:
        raise InvalidRequestError(
            f"the moves of {game_id} are not known, so nobody can draw one",
            hint="give a list of texts that the opponent says in turn",
            field="opponent",
        )
