"""Tic-tac-toe and gomoku of any size as text environments."""

from tinkergym.registration import register as register_environment

__all__ = ["register"]

_ENTRY_POINT = "tinkergym_board.versus:VersusEnv"


def register() -> None:
    """Register this pack's environments; tinkergym finds this by the entry-point group `tinkergym.envs`."""
    register_environment("board/TicTacToeVs-v0", _ENTRY_POINT, kwargs={"size": 3, "win": 3})
    register_environment("board/GomokuVs-v0", _ENTRY_POINT, kwargs={"size": 5, "win": 4})
