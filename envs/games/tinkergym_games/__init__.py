"""Three small games: for one player, for two in turns, and for two at once."""

from tinkergym.games.registry import register_game

__all__ = ["register"]


def register() -> None:
    """Register this pack's games; tinkergym finds this by the entry-point group `tinkergym.envs`."""
    from tinkergym_games.guess_number import GuessNumber
    from tinkergym_games.nim import Nim
    from tinkergym_games.rock_paper_scissors import RockPaperScissors

    register_game("games/GuessNumber-v0", GuessNumber)
    register_game("games/Nim-v0", Nim)
    register_game("games/RockPaperScissors-v0", RockPaperScissors)


# So that `gymnasium.make` knows it after `import`, too.
register()
