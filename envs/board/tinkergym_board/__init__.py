"""Tic-tac-toe and gomoku of any size as text environments."""

import gymnasium as gym

__all__ = ["register"]

_ENTRY_POINT = "tinkergym_board.versus:VersusEnv"


def register() -> None:
    """Register this pack's environments; called by tinkergym through the entry-point group `tinkergym.envs`."""
    gym.register("board/TicTacToeVs-v0", _ENTRY_POINT, kwargs={"size": 3, "win": 3})
    gym.register("board/GomokuVs-v0", _ENTRY_POINT, kwargs={"size": 5, "win": 4})
