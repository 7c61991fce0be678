"""The games of TextArena as text environments."""

from tinkergym.games.registry import register_aec
from tinkergym.registration import register as register_environment
from tinkergym_textarena.games import SINGLE, VERSUS

__all__ = ["register"]

_ROOM = "tinkergym_textarena.environments"


def register() -> None:
    """Register this pack's environments; tinkergym finds this by the entry-point group `tinkergym.envs`.

    TextArena itself is imported when the first game is made: that takes seconds.
    """
    for name in SINGLE:
        register_environment(f"textarena/{name}-v0", f"{_ROOM}:SingleEnv", kwargs={"game": f"{name}-v0"})
    for name in VERSUS:
        register_aec(
            f"textarena/{name}-v0", "tinkergym_textarena.aec:ArenaGame", kwargs={"game": f"{name}-v0"}
        )
        register_environment(f"textarena/{name}Vs-v0", f"{_ROOM}:VersusEnv", kwargs={"game": f"{name}-v0"})


# So that `gymnasium.make` knows it after `import`, too.
register()
