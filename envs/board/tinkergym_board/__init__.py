"""Tic-tac-toe and gomoku of any size as text games."""

from tinkergym.games.registry import register_game

__all__ = ["register"]


def register() -> None:
    """Register this pack's games; tinkergym finds this by the entry-point group `tinkergym.envs`."""
    from tinkergym_board.games import KInARow

    register_game("board/TicTacToe-v0", KInARow, kwargs={"size": 3, "win": 3})
    register_game("board/Gomoku-v0", KInARow, kwargs={"size": 5, "win": 4})


# So that `gymnasium.make` knows it after `import`, too.
register()
