"""Gymnasium's toy-text environments and CartPole, in words."""

from tinkergym.registration import register as register_environment

__all__ = ["register"]

_NAMES = ("FrozenLake", "Taxi", "CliffWalking", "Blackjack", "CartPole")


def register() -> None:
    """Register this pack's environments; tinkergym finds this by the entry-point group `tinkergym.envs`."""
    for name in _NAMES:
        register_environment(f"classic/{name}-v0", f"tinkergym_classic.environments:{name}Env")


# So that `gymnasium.make` knows it after `import`, too.
register()
